/* The system calls that the tracer reports, and the meaning of their arguments.
 *
 * A row is X(name, class, arguments). The arguments are a sequence of letters, each followed by argument numbers:
 *   o012  path: folder descriptor, text, open flags       a012  path: folder descriptor, text, AT_ flags
 *   h012  the same, with a last link followed only if the flags say so
 *   p0    path, links followed                            l0    path, a last link not followed
 *   n01   path below a folder descriptor, last link not followed (d01: followed)
 *   f0    descriptor        s01  socket address and its length        m0  message header with an address
 *   i0    process number    v0   plain number                         t0  text
 */
#include <sys/syscall.h> /* tells which of the old calls there are */

#define AT_CALLS(X) \
    X(openat, open, "o012v2") X(newfstatat, stat, "a013") X(statx, stat, "a012") X(faccessat, stat, "d01") \
    X(readlinkat, stat, "n01") X(statfs, stat, "p0") X(fstatfs, stat, "f0") X(fstat, stat, "f0") \
    X(getxattr, stat, "p0") X(lgetxattr, stat, "l0") X(fgetxattr, stat, "f0") X(listxattr, stat, "p0") \
    X(llistxattr, stat, "l0") X(flistxattr, stat, "f0") X(name_to_handle_at, stat, "h014") \
    X(open_by_handle_at, open, "f0v2") X(inotify_add_watch, stat, "f0p1") X(chdir, stat, "p0") X(fchdir, stat, "f0") \
    X(mkdirat, change, "n01") X(mknodat, change, "n01") X(unlinkat, change, "n01") X(symlinkat, change, "n12") \
    X(linkat, change, "h014n23") X(renameat2, change, "n01n23") X(truncate, change, "p0") X(ftruncate, change, "f0") \
    X(fallocate, change, "f0") X(fchmodat, change, "d01") X(fchmod, change, "f0") X(fchownat, change, "a014") \
    X(fchown, change, "f0") X(utimensat, change, "a013") X(setxattr, change, "p0") X(lsetxattr, change, "l0") \
    X(fsetxattr, change, "f0") X(removexattr, change, "p0") X(lremovexattr, change, "l0") \
    X(fremovexattr, change, "f0") X(mount, change, "p0p1") X(umount2, change, "p0") X(pivot_root, change, "p0p1") \
    X(chroot, change, "p0") X(acct, change, "p0") X(swapon, change, "p0") X(swapoff, change, "p0")
#define DATA_CALLS(X) \
    X(read, read, "f0") X(readv, read, "f0") X(pread64, read, "f0") X(preadv, read, "f0") X(preadv2, read, "f0") \
    X(getdents64, read, "f0") X(mmap, map, "f4v3v2") X(lseek, read, "f0") X(write, write, "f0") \
    X(writev, write, "f0") X(pwrite64, write, "f0") X(pwritev, write, "f0") X(pwritev2, write, "f0") \
    X(sendfile, write, "f0f1") X(splice, write, "f0f2") X(tee, write, "f0f1") X(vmsplice, write, "f0") \
    X(copy_file_range, write, "f0f2") X(close, close, "f0") X(close_range, close, "v0v1v2") X(dup, dup, "f0") \
    X(dup3, dup, "f0f1") X(fcntl, control, "f0v1v2") X(ioctl, control, "f0v1") X(flock, control, "f0") \
    X(epoll_ctl, control, "f0f2") X(pidfd_getfd, control, "f0v1")
#define NETWORK_CALLS(X) \
    X(socket, socket, "v0v1v2") X(connect, connect, "f0s12") X(bind, bind, "f0s12") X(sendto, send, "f0s45") \
    X(sendmsg, send, "f0m1") X(sendmmsg, send, "f0m1") X(recvfrom, read, "f0") X(recvmsg, read, "f0") \
    X(recvmmsg, read, "f0") X(listen, bind, "f0") X(accept, read, "f0") X(accept4, read, "f0") \
    X(setsockopt, control, "f0v1v2") X(shutdown, control, "f0")
#define PROCESS_CALLS(X) \
    X(kill, signal, "i0v1") X(tkill, signal, "i0v1") X(tgkill, signal, "i0v2") X(rt_sigqueueinfo, signal, "i0v1") \
    X(rt_tgsigqueueinfo, signal, "i0v2") X(pidfd_send_signal, signal, "f0v1") X(pidfd_open, process, "i0") \
    X(execve, execute, "p0") X(execveat, execute, "a014") X(wait4, process, "i0") X(waitid, process, "v0i1") \
    X(setuid, process, "v0") X(setgid, process, "v0") X(setreuid, process, "v0v1") X(setregid, process, "v0v1") \
    X(setresuid, process, "v0v1v2") X(setresgid, process, "v0v1v2") X(setgroups, process, "v0") \
    X(setfsuid, process, "v0") X(setfsgid, process, "v0") X(setpriority, process, "v0v1v2") \
    X(sched_setaffinity, process, "i0") X(sched_setscheduler, process, "i0v1") X(sched_setparam, process, "i0") \
    X(sched_setattr, process, "i0") X(setrlimit, process, "v0") X(prlimit64, process, "i0v1v2") \
    X(setitimer, process, "v0") X(timer_create, process, "v0") X(umask, process, "v0") X(setsid, process, "") \
    X(setpgid, process, "i0v1") X(sethostname, process, "") X(setdomainname, process, "") \
    X(clock_settime, process, "v0") X(settimeofday, process, "") X(clock_adjtime, process, "v0") \
    X(adjtimex, process, "") X(unshare, process, "v0") X(setns, process, "f0") X(ptrace, process, "v0i1") \
    X(process_vm_readv, process, "i0") X(process_vm_writev, process, "i0") X(bpf, process, "v0") \
    X(perf_event_open, process, "i1") X(keyctl, process, "v0") X(add_key, process, "t0") \
    X(request_key, process, "t0") X(mq_open, process, "t0") X(mq_unlink, process, "t0") X(shmget, process, "v0") \
    X(semget, process, "v0") X(msgget, process, "v0") X(prctl, process, "v0v1") X(personality, process, "v0") \
    X(reboot, process, "") X(kexec_load, process, "") X(init_module, process, "") X(finit_module, process, "f0") \
    X(delete_module, process, "t0") X(syslog, process, "v0") X(io_uring_setup, process, "v0") \
    X(userfaultfd, process, "v0") X(memfd_create, process, "t0") X(rt_sigtimedwait, process, "") X(exit_group, process, "v0")
#ifdef SYS_open
#define OLD_CALLS(X) \
    X(creat, open, "p0") X(stat, stat, "p0") X(lstat, stat, "l0") X(access, stat, "p0") X(readlink, stat, "l0") \
    X(mkdir, change, "l0") X(mknod, change, "l0") X(rmdir, change, "l0") X(unlink, change, "l0") \
    X(symlink, change, "l1") X(link, change, "l0l1") X(rename, change, "l0l1") X(chmod, change, "p0") \
    X(chown, change, "p0") X(lchown, change, "l0") X(utime, change, "p0") X(utimes, change, "p0") \
    X(futimesat, change, "d01") X(dup2, dup, "f0f1") X(alarm, process, "v0") X(getdents, read, "f0")
#else
#define OLD_CALLS(X)
#endif
#ifdef SYS_renameat
#define RENAMEAT_CALL(X) X(renameat, change, "n01n23")
#else
#define RENAMEAT_CALL(X)
#endif
