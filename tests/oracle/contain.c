/* Containment of the traced process: namespaces, a read-only file system, a private /dev and no capabilities.
 *
 * The oracle calls everything with hostile arguments. Nothing of that may reach the machine, even where the guard has
 * a hole. */
#define _GNU_SOURCE
#include "tracer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEVICES = 6 };

static void must(int result, const char *step)
{
    if (result < 0) {
        fprintf(stderr, "tracer: no containment on this machine: %s: %s\n", step, strerror(errno));
        exit(NO_CONTAINMENT);
    }
}

static void write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY);
    must(fd, path);
    must(write(fd, text, strlen(text)) < 0 ? -1 : 0, path);
    close(fd);
}

static void enter_namespaces(void)
{
    int flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (uid == 0) {
        must(unshare(flags), "unshare");
        return;
    }
    must(unshare(flags | CLONE_NEWUSER), "unshare with a user namespace");
    char map[64];
    write_text("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1", uid, uid);
    write_text("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "%u %u 1", gid, gid);
    write_text("/proc/self/gid_map", map);
}

static void loopback_up(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
    strcpy(request.ifr_name, "lo");
    must(fd, "socket");
    must(ioctl(fd, SIOCSIFFLAGS, &request), "loopback up");
    close(fd);
}

static void private_devices(void)
{
    static const char *const names[DEVICES] = {"null", "zero", "full", "random", "urandom", "tty"};
    int fds[DEVICES];
    char path[64], source[64];
    for (int i = 0; i < DEVICES; i++) {
        snprintf(path, sizeof path, "/dev/%s", names[i]);
        fds[i] = open(path, O_PATH | O_CLOEXEC);
    }
    must(mount("oracle", "/dev", "tmpfs", MS_NOSUID, "mode=755"), "mount /dev");
    for (int i = 0; i < DEVICES; i++) {
        if (fds[i] < 0) {
            continue;
        }
        snprintf(path, sizeof path, "/dev/%s", names[i]);
        snprintf(source, sizeof source, "/proc/self/fd/%d", fds[i]);
        close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
        must(mount(source, path, NULL, MS_BIND, NULL), path);
        close(fds[i]);
    }
    must(mkdir("/dev/shm", 01777), "mkdir /dev/shm");
    must(mkdir("/dev/pts", 0755), "mkdir /dev/pts");
    must(mount("oracle", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"), "mount /dev/shm");
    must(mount("oracle", "/dev/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666"), "mount /dev/pts");
    must(symlink("pts/ptmx", "/dev/ptmx"), "link /dev/ptmx");
    must(symlink("/proc/self/fd", "/dev/fd"), "link /dev/fd");
}

static void set_read_only(const char *path, bool value, unsigned flags)
{
    struct mount_attr attribute = {.attr_set = value ? MOUNT_ATTR_RDONLY : 0, .attr_clr = value ? 0 : MOUNT_ATTR_RDONLY};
    must((int)syscall(SYS_mount_setattr, AT_FDCWD, path, flags, &attribute, sizeof attribute), path);
}

static void private_mounts(const char *folder)
{
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
    must(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount /proc");
    private_devices();
    must(mount("oracle", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"), folder);
    set_read_only("/", true, AT_RECURSIVE);
    set_read_only(folder, false, 0);
    set_read_only("/dev/shm", false, 0);
}

/* Waits in the outer namespaces for the process that goes on in the inner ones. */
static void wait_outside(pid_t inner)
{
    int status = 0;
    while (waitpid(inner, &status, 0) < 0 && errno == EINTR) {
    }
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

void contain(const char *folder)
{
    enter_namespaces();
    pid_t inner = fork();
    must(inner, "fork");
    if (inner > 0) {
        wait_outside(inner);
    }
    must(prctl(PR_SET_PDEATHSIG, SIGKILL), "parent death signal");
    loopback_up();
    private_mounts(folder);
}

void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    for (int capability = 0; capability <= CAP_LAST_CAP; capability++) {
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
    }
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    must((int)syscall(SYS_capset, &header, none), "capset");
}
