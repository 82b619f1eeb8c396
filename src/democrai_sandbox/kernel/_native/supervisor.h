/* Supervised calls: those that change the metadata of files, made for a child by the spawn server. */
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

/* Makes the call if its file is at or below a root; returns 0 or a negative errno. Uses no Python objects. */
int metadata_change(int listener, const struct seccomp_notif *notice, const Roots *roots);

#endif
