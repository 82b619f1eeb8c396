/* What the parts of the tracer share. */
#ifndef TRACER_H
#define TRACER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { NO_CONTAINMENT = 77, TEXT = PATH_MAX + 64 };

void contain(const char *folder);
void drop_capabilities(void);

/* Where a path leads for a traced thread: through its folder descriptor and links, as the kernel would. */
void resolve(pid_t process, pid_t thread, int folder, const char *path, bool follow, char *out);
/* What a descriptor of a traced thread is: a path, or a text such as "pipe:[1]"; "" when it is not open. */
void descriptor_text(pid_t thread, int fd, char *out);
/* Names the entries below /proc of the process itself "/proc/self". */
void name_own_entry(pid_t process, char *text);
bool read_memory(pid_t thread, uint64_t address, void *out, size_t length);
bool read_text(pid_t thread, uint64_t address, char *out, size_t size);

#endif
