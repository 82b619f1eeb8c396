/* Resolution of paths from outside the process that names them. Linux does not tell a tracer what a path led to. */
#define _GNU_SOURCE
#include "tracer.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LINKS = 40, PAGE = 4096 };

bool read_memory(pid_t thread, uint64_t address, void *out, size_t length)
{
    struct iovec here = {out, length}, there = {(void *)(uintptr_t)address, length};
    return process_vm_readv(thread, &here, 1, &there, 1, 0) == (ssize_t)length;
}

/* Reads page by page: the text may end just before memory that is not mapped. */
bool read_text(pid_t thread, uint64_t address, char *out, size_t size)
{
    size_t done = 0;
    while (done + 1 < size) {
        size_t step = PAGE - (size_t)((address + done) % PAGE);
        step = step < size - 1 - done ? step : size - 1 - done;
        if (!read_memory(thread, address + done, out + done, step)) {
            break;
        }
        char *end = memchr(out + done, '\0', step);
        if (end != NULL) {
            return true;
        }
        done += step;
    }
    out[done] = '\0';
    return done > 0;
}

static bool link_text(const char *link, char *out)
{
    ssize_t length = readlink(link, out, TEXT - 1);
    out[length > 0 ? length : 0] = '\0';
    return length > 0;
}

void descriptor_text(pid_t thread, int fd, char *out)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/%d/fd/%d", thread, fd);
    link_text(link, out);
}

static void start_folder(pid_t thread, int folder, char *out)
{
    char link[64];
    if (folder != AT_FDCWD) {
        descriptor_text(thread, folder, out);
        return;
    }
    snprintf(link, sizeof link, "/proc/%d/cwd", thread);
    link_text(link, out);
}

/* The names "self" and "thread-self" mean the traced process here, not this one. */
static void own_entry(pid_t process, pid_t thread, char *out)
{
    if (strcmp(out, "/proc/self") == 0) {
        snprintf(out, TEXT, "/proc/%d", process);
    }
    else if (strcmp(out, "/proc/thread-self") == 0) {
        snprintf(out, TEXT, "/proc/%d/task/%d", process, thread);
    }
}

/* The entries of the process itself under one name for each number. */
void name_own_entry(pid_t process, char *out)
{
    char prefix[32], rest[TEXT];
    int length = snprintf(prefix, sizeof prefix, "/proc/%d", process);
    if (strncmp(out, prefix, (size_t)length) == 0 && (out[length] == '/' || out[length] == '\0')) {
        snprintf(rest, sizeof rest, "%s", out + length);
        snprintf(out, TEXT, "/proc/self%s", rest);
    }
}

void resolve(pid_t process, pid_t thread, int folder, const char *path, bool follow, char *out)
{
    char rest[2 * TEXT], target[TEXT], joined[2 * TEXT];
    out[0] = '\0';
    if (path[0] != '/') {
        start_folder(thread, folder, out);
    }
    if (strcmp(out, "/") == 0) {
        out[0] = '\0';
    }
    snprintf(rest, sizeof rest, "%s", path);
    int links = 0;
    for (char *at = rest; *at != '\0';) {
        size_t length = strcspn(at, "/");
        char *next = at + length;
        bool last = next[strspn(next, "/")] == '\0' && *next == '\0';
        if (length == 2 && at[0] == '.' && at[1] == '.') {
            char *slash = strrchr(out, '/');
            if (slash != NULL) {
                *slash = '\0';
            }
        }
        else if (length > 0 && !(length == 1 && at[0] == '.')) {
            size_t used = strlen(out);
            if (used + length + 2 >= TEXT) {
                break;
            }
            out[used] = '/';
            memcpy(out + used + 1, at, length);
            out[used + 1 + length] = '\0';
            own_entry(process, thread, out);
            if ((!last || follow) && links < LINKS && link_text(out, target)) {
                links++;
                if (target[0] == '/') {
                    out[0] = '\0';
                }
                else if (strncmp(out, "/proc/", 6) == 0 && strchr(target, ':') != NULL) {
                    snprintf(out, TEXT, "%s", target); /* a pipe, a socket, an object without a path */
                    return;
                }
                else {
                    out[used] = '\0';
                }
                snprintf(joined, sizeof joined, "%s%.*s", target, (int)(sizeof joined - TEXT), next);
                strcpy(rest, joined);
                at = rest;
                continue;
            }
        }
        at = next + (*next == '/');
    }
    if (out[0] == '\0') {
        strcpy(out, "/");
    }
    name_own_entry(process, out);
}
