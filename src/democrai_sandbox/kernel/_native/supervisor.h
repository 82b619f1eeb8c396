/* Supervised calls: those that change the metadata of files or connect local sockets, made by the spawn server. */
#ifndef DEMOCRAI_KERNEL_SUPERVISOR_H
#define DEMOCRAI_KERNEL_SUPERVISOR_H

#include "native.h"

#include <linux/seccomp.h>
#include <sys/types.h>

/* Path that a child may change, with everything below it: only while the same file or folder is there. */
typedef struct {
    char *path; /* without links */
    size_t length;
    dev_t device;
    ino_t inode;
} Root;

typedef struct {
    Root *list;
    Py_ssize_t count;
} Roots;

/* ---- child_files.c: 0, a descriptor, or a negative errno ---------------------------------------------------------- */
enum { NO_MAGIC_LINKS = 0x02, NO_LINKS = 0x04, BENEATH = 0x08 }; /* how openat2 resolves */

ssize_t child_read(pid_t pid, uint64_t address, void *place, size_t size);
int open_how(int folder, const char *path, uint64_t flags, uint64_t resolve);
int child_open(pid_t pid, int number);
const char *child_descriptor_in(const char *path, int *number);
int file_below(int file, const Roots *roots);
int take_capabilities_of(pid_t pid, bool *limited);
void restore_capabilities(void);

/* ---- unix_connect.c ---------------------------------------------------------------------------------------------- */
/* Connects a stream socket of the child to a socket file below a root. */
int unix_connect(int listener, const struct seccomp_notif *notice, const Roots *roots);

/* ---- metadata.c -------------------------------------------------------------------------------------------------- */
/* Makes the call if its file is at or below a root; returns 0 or a negative errno. Uses no Python objects. */
int metadata_change(int listener, const struct seccomp_notif *notice, const Roots *roots);

#endif
