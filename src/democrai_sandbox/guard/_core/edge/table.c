/* Every patched builtin, in one table: where it is, which handler decides, for which operations.
 *
 * Slots of types (FileIO.__init__, sqlite3.Connection.__init__, ...) cannot be listed here; they are patched in the file
 * that handles them, by patch_slot(). Calls that raise an audit event and need no race protection are in audit.c. */
#include "edge/edge.h"

#define DIR (FOLLOW | DEFAULTS)
#define ROWS(X)                                                                                                        \
    /*  module, owner, name, handler, operations, how, argument, index, optional, always (1: also for unguarded code, 2: also while no guard is alive) */                            \
    X(posix, _, stat, on_path, OP_READ, FOLLOW | STAT | PROBE | LOOK, "path", 0, 0, 0)                                 \
    X(posix, _, lstat, on_path, OP_READ, STAT | PROBE | LOOK, "path", 0, 0, 0)                                         \
    X(posix, _, access, on_path, OP_READ, FOLLOW | PROBE | ANSWERS | LOOK, "path", 0, 0, 0)                            \
    X(posix, _, readlink, on_path, OP_READ, PARENT | TAKES_FOLDER | PROBE | LOOK, "path", 0, 0, 0)                     \
    X(posix, _, listdir, on_listdir, OP_READ, DIR, "path", 0, 0, 0)                                                       \
    X(posix, _, scandir, on_scan, OP_READ, DIR, "path", 0, 0, 0)                                                       \
    X(posix, DirEntry, stat, on_entry, OP_READ, STAT, "", 0, 0, 0)                                                        \
    X(posix, DirEntry, is_dir, on_entry, OP_READ, 0, "", 0, 0, 0)                                                      \
    X(posix, DirEntry, is_file, on_entry, OP_READ, 0, "", 0, 0, 0)                                                     \
    X(posix, _, chdir, on_path, OP_READ, FOLLOW, "path", 0, 0, 0)                                                      \
    X(posix, _, statvfs, on_path, OP_READ, FOLLOW, "path", 0, 0, 0)                                                    \
    X(posix, _, pathconf, on_path, OP_READ, FOLLOW, "path", 0, 0, 0)                                                   \
    X(posix, _, getxattr, on_path, OP_READ, FOLLOW, "path", 0, 1, 0)                                                   \
    X(posix, _, listxattr, on_path, OP_READ, DIR, "path", 0, 1, 0)                                                     \
    X(posix, _, setxattr, on_path, OP_MODIFY, FOLLOW, "path", 0, 1, 0)                                                 \
    X(posix, _, removexattr, on_path, OP_MODIFY, FOLLOW, "path", 0, 1, 0)                                              \
    X(posix, _, chmod, on_path, OP_MODIFY, FOLLOW, "path", 0, 0, 0)                                                    \
    X(posix, _, chown, on_path, OP_MODIFY, FOLLOW, "path", 0, 0, 0)                                                    \
    X(posix, _, lchown, on_path, OP_MODIFY, PARENT, "path", 0, 0, 0)                                                   \
    X(posix, _, utime, on_path, OP_MODIFY, FOLLOW, "path", 0, 0, 0)                                                    \
    X(posix, _, truncate, on_path, OP_MODIFY, FOLLOW, "path", 0, 0, 0)                                                 \
    X(posix, _, mkdir, on_path, OP_CREATE, PARENT | TAKES_FOLDER, "path", 0, 0, 0)                                     \
    X(posix, _, mkfifo, on_path, OP_CREATE, PARENT | TAKES_FOLDER, "path", 0, 0, 0)                                    \
    X(posix, _, mknod, on_device, OP_CREATE, PARENT | TAKES_FOLDER, "path", 0, 0, 0)                                   \
    X(posix, _, unlink, on_path, OP_DELETE, PARENT | TAKES_FOLDER, "path", 0, 0, 0)                                    \
    X(posix, _, remove, on_path, OP_DELETE, PARENT | TAKES_FOLDER, "path", 0, 0, 0)                                    \
    X(posix, _, rmdir, on_path, OP_DELETE, PARENT | TAKES_FOLDER, "path", 0, 0, 0)                                     \
    X(posix, _, rename, on_path_pair, OP_DELETE, PARENT | TAKES_FOLDER, "src", 0, 0, 0)                                \
    X(posix, _, replace, on_path_pair, OP_DELETE, PARENT | TAKES_FOLDER, "src", 0, 0, 0)                               \
    X(posix, _, link, on_path_pair, OP_READ, PARENT, "src", 0, 0, 0)                                                   \
    X(posix, _, symlink, on_symlink, OP_CREATE, PARENT | TAKES_FOLDER, "src", 0, 0, 0)                                 \
    X(posix, _, open, on_open, 0, 0, "path", 0, 0, 0)                                                                  \
    X(posix, _, chroot, on_process, 0, 0, "os", 0, 1, 0)                                                               \
    /* descriptors: by number, checked by what they point to unless made under the guard */                            \
    X(posix, _, read, on_descriptor, OP_READ, 0, "fd", 0, 0, 0)                                                        \
    X(posix, _, readv, on_descriptor, OP_READ, 0, "fd", 0, 1, 0)                                                       \
    X(posix, _, readinto, on_descriptor, OP_READ, 0, "fd", 0, 1, 0)                                                    \
    X(posix, _, pread, on_descriptor, OP_READ | WANT_PLACE, 0, "fd", 0, 0, 0)                                          \
    X(posix, _, preadv, on_descriptor, OP_READ | WANT_PLACE, 0, "fd", 0, 1, 0)                                         \
    X(posix, _, lseek, on_descriptor, WANT_MANAGE, 0, "fd", 0, 0, 0)                                                   \
    X(posix, _, fstat, on_descriptor, OP_READ, 0, "fd", 0, 0, 0)                                                       \
    X(posix, _, fstatvfs, on_descriptor, OP_READ, 0, "fd", 0, 0, 0)                                                    \
    X(posix, _, fpathconf, on_descriptor, OP_READ, 0, "fd", 0, 0, 0)                                                   \
    X(posix, _, fchdir, on_descriptor, OP_READ, 0, "fd", 0, 0, 0)                                                      \
    X(posix, _, dup, on_new_descriptor, OP_READ, 0, "fd", 0, 0, 0)                                                     \
    X(posix, _, write, on_descriptor, OP_MODIFY, 0, "fd", 0, 0, 0)                                                     \
    X(posix, _, writev, on_descriptor, OP_MODIFY, 0, "fd", 0, 1, 0)                                                    \
    X(posix, _, pwrite, on_descriptor, OP_MODIFY | WANT_PLACE, 0, "fd", 0, 0, 0)                                       \
    X(posix, _, pwritev, on_descriptor, OP_MODIFY | WANT_PLACE, 0, "fd", 0, 1, 0)                                      \
    X(posix, _, ftruncate, on_descriptor, OP_MODIFY | WANT_PLACE, 0, "fd", 0, 0, 0)                                    \
    X(posix, _, fchmod, on_descriptor, OP_MODIFY | WANT_PATH, 0, "fd", 0, 0, 0)                                        \
    X(posix, _, fchown, on_descriptor, OP_MODIFY | WANT_PATH, 0, "fd", 0, 0, 0)                                        \
    X(posix, _, posix_fallocate, on_descriptor, OP_MODIFY | WANT_PLACE, 0, "fd", 0, 1, 0)                              \
    X(posix, _, posix_fadvise, on_descriptor, OP_READ, 0, "fd", 0, 1, 0)                                               \
    X(posix, _, lockf, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                                   \
    X(posix, _, close, on_close, WANT_MANAGE, 0, "fd", 0, 0, 0)                                                   \
    X(posix, _, set_inheritable, on_descriptor, WANT_MANAGE, 0, "fd", 0, 0, 0)                                         \
    X(posix, _, set_blocking, on_descriptor, WANT_MANAGE, 0, "fd", 0, 0, 0)                                            \
    X(posix, _, tcsetpgrp, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                               \
    X(posix, _, grantpt, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                                 \
    X(posix, _, ptsname, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                                 \
    X(posix, _, unlockpt, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                                \
    X(posix, _, eventfd_read, on_descriptor, OP_READ, 0, "fd", 0, 1, 0)                                                \
    X(posix, _, eventfd_write, on_descriptor, OP_MODIFY, 0, "fd", 0, 1, 0)                                             \
    X(posix, _, timerfd_settime, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                         \
    X(posix, _, timerfd_settime_ns, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                      \
    X(posix, _, sendfile, on_descriptor_pair, OP_READ, 0, "in_fd", 1, 0, 0)                                            \
    X(posix, _, copy_file_range, on_descriptor_pair, OP_READ, 0, "src", 0, 1, 0)                                       \
    X(posix, _, splice, on_descriptor_pair, OP_READ, 0, "src", 0, 1, 0)                                                \
    X(posix, _, dup2, on_dup2, OP_READ, 0, "fd", 0, 0, 0)                                                              \
    X(posix, _, closerange, on_refuse_descriptor, 0, 0, "fd", 0, 0, 0)                                                 \
    X(posix, _, login_tty, on_refuse_descriptor, 0, 0, "fd", 0, 1, 0)                                                  \
    X(posix, _, pipe, on_new_descriptor, 0, 0, NULL, 0, 0, 0)                                                          \
    X(posix, _, pipe2, on_new_descriptor, 0, 0, NULL, 0, 1, 0)                                                         \
    X(posix, _, openpty, on_new_descriptor, 0, 0, NULL, 0, 1, 0)                                                       \
    X(posix, _, posix_openpt, on_new_descriptor, 0, 0, NULL, 0, 1, 0)                                                  \
    X(posix, _, memfd_create, on_new_descriptor, 0, 0, NULL, 0, 1, 0)                                                  \
    X(posix, _, eventfd, on_new_descriptor, 0, 0, NULL, 0, 1, 0)                                                       \
    X(_socket, socket, connect, on_connect, 0, 0, NULL, 0, 1, 0)                                                       \
    X(_socket, socket, connect_ex, on_connect, 0, 0, NULL, 0, 1, 0)                                                    \
    X(_socket, socket, send, on_send, 0, 0, NULL, 0, 1, 0)                                                             \
    X(_socket, socket, sendall, on_send, 0, 0, NULL, 0, 1, 0)                                                          \
    X(_socket, socket, sendto, on_sendto, 0, 0, NULL, 0, 1, 0)                                                         \
    X(_socket, socket, sendmsg, on_sendmsg, 0, 0, NULL, 0, 1, 0)                                                       \
    X(_socket, socket, recv, on_receive, 0, 0, NULL, 0, 1, 0)                                                          \
    X(_socket, socket, recv_into, on_receive, 0, 0, NULL, 0, 1, 0)                                                     \
    X(_socket, socket, recvfrom, on_receive, 0, 0, NULL, 0, 1, 0)                                                      \
    X(_socket, socket, recvfrom_into, on_receive, 0, 0, NULL, 0, 1, 0)                                                 \
    X(_socket, socket, recvmsg, on_receive, 0, 0, NULL, 0, 1, 0)                                                       \
    X(_socket, socket, recvmsg_into, on_receive, 0, 0, NULL, 0, 1, 0)                                                  \
    X(_io, FileIO, truncate, on_file_place, 0, 0, NULL, 0, 0, 0)                                                       \
    X(_io, FileIO, seek, on_file_place, 0, 0, NULL, 0, 0, 0)                                                           \
    X(_io, FileIO, write, on_file_write, 0, 0, NULL, 0, 0, 0)                                                          \
    X(_socket, socket, sendmsg_afalg, on_afalg, 0, 0, NULL, 0, 1, 0)                                                  \
    X(_socket, socket, setsockopt, on_option, 0, 0, NULL, 0, 1, 0)                                                    \
    X(_socket, socket, bind, on_bind, 0, 0, NULL, 0, 1, 0)                                                             \
    X(_socket, socket, listen, on_listen, 0, 0, NULL, 0, 1, 0)                                                         \
    X(_socket, socket, _accept, on_accept, 0, 0, NULL, 0, 1, 0)                                                        \
    X(_socket, socket, detach, on_detach, 0, 0, NULL, 0, 1, 0)                                                         \
    X(_socket, _, socketpair, on_socketpair, 0, 0, NULL, 0, 1, 0)                                                      \
    X(_socket, _, getaddrinfo, on_getaddrinfo, 0, 0, NULL, 0, 1, 2)                                                    \
    X(_socket, _, gethostbyname, on_gethostbyname, 0, 0, NULL, 0, 1, 2)                                                \
    X(_socket, _, gethostbyname_ex, on_gethostbyname, 0, 0, NULL, 0, 1, 2)                                             \
    X(_socket, _, gethostbyaddr, on_reverse, 0, 0, NULL, 0, 1, 0)                                                      \
    X(_socket, _, getnameinfo, on_reverse, 0, 0, NULL, 0, 1, 0)                                                        \
    X(_ssl, _SSLContext, _wrap_socket, on_wrap_socket, 0, 0, NULL, 0, 1, 0)                                            \
    X(_ssl, _SSLContext, _wrap_bio, on_wrap_bio, 0, 0, NULL, 0, 1, 0)                                                  \
    X(_ssl, MemoryBIO, read, on_bio_read, 0, 0, NULL, 0, 1, 0)                                                         \
    X(_ssl, MemoryBIO, write, on_bio_write, 0, 0, NULL, 0, 1, 0)                                                       \
    X(_ssl, _SSLSocket, write, on_tls_write, 0, 0, NULL, 0, 1, 0)                                                      \
    X(_ssl, _SSLSocket, read, on_tls_read, 0, 0, NULL, 0, 1, 0)                                                        \
    X(_socket, _, dup, on_new_descriptor, OP_READ, 0, "", 0, 1, 0)                                                     \
    X(_socket, _, close, on_close, WANT_MANAGE, 0, "", 0, 1, 0)                                                   \
    X(posix, _, timerfd_create, on_new_descriptor, 0, 0, NULL, 0, 1, 0)                                                \
    /* processes: starting them, becoming another one, and acting on others */                                         \
    X(_posixsubprocess, _, fork_exec, on_fork_exec, 0, 0, "_posixsubprocess", 0, 1, 0)                                 \
    X(posix, _, system, on_system, 0, 0, "os", 0, 0, 0)                                                                \
    X(posix, _, posix_spawn, on_spawn, 0, 0, "os", 2, 1, 0)                                                            \
    X(posix, _, posix_spawnp, on_spawn, 0, 0, "os", 2, 1, 0)                                                           \
    X(posix, _, execv, on_spawn, 0, 0, "os", -1, 0, 0)                                                                 \
    X(posix, _, execve, on_spawn, 0, 0, "os", 2, 0, 0)                                                                 \
    X(posix, _, fork, on_fork, 0, 0, "os", 0, 0, 0)                                                                 \
    X(posix, _, fork1, on_fork, 0, 0, "os", 0, 1, 0)                                                                \
    X(posix, _, forkpty, on_fork, 0, 0, "os", 0, 1, 0)                                                              \
    X(posix, _, kill, on_process, 0, 0, "os", 0, 0, 0)                                                                 \
    X(posix, _, killpg, on_process, 0, 0, "os", 0, 0, 0)                                                               \
    X(posix, _, abort, on_process, 0, 0, "os", 0, 0, 0)                                                                \
    X(posix, _, _exit, on_process, 0, 0, "os", 0, 0, 0)                                                                \
    X(posix, _, pidfd_open, on_process_handle, 0, 0, "os", 0, 1, 0)                                                    \
    X(posix, _, setns, on_process, 0, 0, "os", 0, 1, 0)                                                                \
    X(posix, _, unshare, on_process, 0, 0, "os", 0, 1, 0)                                                              \
    X(posix, _, setuid, on_process, 0, 0, "os", 0, 0, 0)                                                               \
    X(posix, _, seteuid, on_process, 0, 0, "os", 0, 0, 0)                                                              \
    X(posix, _, setreuid, on_process, 0, 0, "os", 0, 0, 0)                                                             \
    X(posix, _, setresuid, on_process, 0, 0, "os", 0, 1, 0)                                                            \
    X(posix, _, setgid, on_process, 0, 0, "os", 0, 0, 0)                                                               \
    X(posix, _, setegid, on_process, 0, 0, "os", 0, 0, 0)                                                              \
    X(posix, _, setregid, on_process, 0, 0, "os", 0, 0, 0)                                                             \
    X(posix, _, setresgid, on_process, 0, 0, "os", 0, 1, 0)                                                            \
    X(posix, _, setgroups, on_process, 0, 0, "os", 0, 0, 0)                                                            \
    X(posix, _, initgroups, on_process, 0, 0, "os", 0, 1, 0)                                                           \
    X(posix, _, setsid, on_process, 0, 0, "os", 0, 0, 0)                                                               \
    X(posix, _, setpgid, on_process, 0, 0, "os", 0, 0, 0)                                                              \
    X(posix, _, setpgrp, on_process, 0, 0, "os", 0, 1, 0)                                                              \
    X(posix, _, umask, on_umask, 0, 0, "os", 0, 0, 0)                                                                \
    X(posix, _, register_at_fork, on_callables, 0, 0, NULL, 0, 1, 0)                                                     \
    X(_thread, _, interrupt_main, on_process, 0, 0, "_thread", 0, 1, 0)                                                \
    X(_signal, _, raise_signal, on_own_signal, 0, 0, "signal", 0, 1, 0)                                                \
    X(_signal, _, setitimer, on_own_signal, 0, 0, "signal", 0, 1, 0)                                                   \
    X(_signal, _, alarm, on_own_signal, 0, 0, "signal", 0, 1, 0)                                                       \
    X(_signal, _, pidfd_send_signal, on_process, 0, 0, "signal", 0, 1, 0)                                              \
    X(spwd, _, getspnam, on_secret_database, 0, 0, NULL, 0, 1, 0)                                                      \
    X(spwd, _, getspall, on_secret_database, 0, 0, NULL, 0, 1, 0)                                                      \
    /* the process belongs to the host */                                                                              \
    X(posix, _, wait, on_wait, 0, 0, "os.wait", -1, 0, 0)                                                              \
    X(posix, _, wait3, on_wait, 0, 0, "os.wait3", -1, 1, 0)                                                            \
    X(posix, _, waitpid, on_wait, 0, 0, "os.waitpid", 0, 0, 0)                                                         \
    X(posix, _, wait4, on_wait, 0, 0, "os.wait4", 0, 1, 0)                                                             \
    X(posix, _, waitid, on_wait, 0, 0, "os.waitid", 1, 1, 0)                                                           \
    X(posix, _, setpriority, on_host_setting, 0, 0, "os.setpriority", 0, 1, 0)                                         \
    X(posix, _, sched_setaffinity, on_host_setting, 0, 0, "os.sched_setaffinity", 0, 1, 0)                             \
    X(posix, _, sched_setscheduler, on_host_setting, 0, 0, "os.sched_setscheduler", 0, 1, 0)                           \
    X(posix, _, sched_setparam, on_host_setting, 0, 0, "os.sched_setparam", 0, 1, 0)                                   \
    X(posix, _, nice, on_nice, 0, 0, "os.nice", 0, 1, 0)                                                               \
    X(_signal, _, pthread_sigmask, on_signal_mask, 0, 0, "signal.pthread_sigmask", 0, 1, 0)                            \
    X(_signal, _, siginterrupt, on_host_setting, 0, 0, "signal.siginterrupt", 0, 1, 0)                                 \
    X(atexit, _, _clear, on_host_setting, 0, 0, "atexit._clear", 0, 0, 0)                                              \
    X(atexit, _, _run_exitfuncs, on_host_setting, 0, 0, "atexit._run_exitfuncs", 0, 0, 0)                              \
    X(_multiprocessing, _, sem_unlink, on_process, 0, 0, "_multiprocessing", 0, 1, 0)                                  \
    X(_multiprocessing, SemLock, _rebuild, on_process, 0, 0, "_multiprocessing", 0, 1, 0)                              \
    X(select, epoll, fromfd, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                             \
    X(faulthandler, _, disable, on_host_setting, 0, 0, "faulthandler.disable", 0, 1, 0)                                \
    X(faulthandler, _, unregister, on_host_setting, 0, 0, "faulthandler.unregister", 0, 1, 0)                          \
    X(faulthandler, _, cancel_dump_traceback_later, on_host_setting, 0, 0, "faulthandler", 0, 1, 0)                    \
    X(faulthandler, _, _sigsegv, on_tamper, 0, 0, NULL, 0, 1, 0)                                                       \
    X(faulthandler, _, _sigabrt, on_tamper, 0, 0, NULL, 0, 1, 0)                                                       \
    X(faulthandler, _, _sigfpe, on_tamper, 0, 0, NULL, 0, 1, 0)                                                        \
    X(faulthandler, _, _read_null, on_tamper, 0, 0, NULL, 0, 1, 0)                                                     \
    X(faulthandler, _, _stack_overflow, on_tamper, 0, 0, NULL, 0, 1, 0)                                                \
    X(faulthandler, _, _fatal_error_c_thread, on_tamper, 0, 0, NULL, 0, 1, 0)                                          \
    X(faulthandler, _, enable, on_host_setting, 0, 0, "faulthandler.enable", 0, 1, 0)                                  \
    X(faulthandler, _, dump_traceback_later, on_host_setting, 0, 0, "faulthandler.dump_traceback_later", 0, 1, 0)      \
    X(faulthandler, _, register, on_host_setting, 0, 0, "faulthandler.register", 0, 1, 0)                              \
    X(sys, _, setrecursionlimit, on_host_setting, 0, 0, "sys.setrecursionlimit", 0, 0, 0)                              \
    X(_socket, _, setdefaulttimeout, on_shared_setting, 0, 0, "socket.setdefaulttimeout", 0, 1, 0)                     \
    X(gc, _, enable, on_collector, 0, 0, "gc.enable", 0, 1, 0)                                                         \
    X(gc, _, disable, on_collector, 0, 0, "gc.disable", 0, 1, 0)                                                       \
    X(gc, _, set_threshold, on_collector, 0, 0, "gc.set_threshold", 0, 1, 0)                                           \
    X(gc, _, set_debug, on_shared_setting, 0, 0, "gc.set_debug", 0, 1, 0)                                              \
    X(gc, _, freeze, on_collector, 0, 0, "gc.freeze", 0, 1, 0)                                                         \
    X(gc, _, unfreeze, on_collector, 0, 0, "gc.unfreeze", 0, 1, 0)                                                     \
    X(_codecs, _, register, on_codec_search, 0, 0, "codecs.register", 0, 0, 0)                                         \
    X(_codecs, _, unregister, on_codec_removal, 0, 0, "codecs.unregister", 0, 0, 0)                                    \
    X(_codecs, _, register_error, on_register_error, 0, 0, "codecs.register_error", 0, 0, 0)                           \
    X(_thread, _, stack_size, on_stack_size, 0, 0, "threading.stack_size", 0, 0, 0)                                    \
    /* callables kept for later run under the guard that handed them over */                                           \
    X(_thread, _, start_new_thread, on_callable, 0, 0, "function", 0, 0, 0)                                            \
    X(_thread, _, start_new, on_callable, 0, 0, "function", 0, 1, 0)                                                   \
    X(_thread, _, start_joinable_thread, on_callable, 0, 0, "function", 0, 1, 0)                                       \
    X(atexit, _, register, on_callable, 0, 0, "func", 0, 0, 0)                                                         \
    X(_signal, _, set_wakeup_fd, on_wakeup_number, 0, 0, NULL, 0, 1, 0)                                                \
    X(_signal, _, signal, on_signal, 0, 0, "handler", 1, 0, 1)                                                         \
    X(_weakref, _, proxy, on_callable,   0, 0, "callback", 1, 0, 0)                                                    \
    X(sys, _, set_asyncgen_hooks, on_callables, 0, 0, NULL, 0, 0, 0)                                                   \
    X(_asyncio, Future, add_done_callback, on_done_callback, 0, 0, "fn", 0, 1, 2)                                      \
    X(_asyncio, Task, add_done_callback, on_done_callback, 0, 0, "fn", 0, 1, 2)                                        \
    /* losing the context is not losing the guard */                                                                   \
    X(_contextvars, Context, keys, on_context_view, 0, 0, NULL, 0, 0, 2)                                               \
    X(_contextvars, Context, values, on_context_view, 0, 0, NULL, 0, 0, 2)                                             \
    X(_contextvars, Context, items, on_context_view, 0, 0, NULL, 0, 0, 2)                                              \
    X(_contextvars, Context, run, on_context_run, 0, 0, NULL, 0, 0, 1)                                                 \
    X(_contextvars, ContextVar, set, on_context_variable, 0, 0, NULL, 0, 0, 1)                                         \
    X(_contextvars, ContextVar, reset, on_context_variable, 0, 0, NULL, 0, 0, 1)                                       \
    X(types, MethodType, __reduce__, on_method_reduce, 0, 0, NULL, 0, 1, 0)                                            \
    X(types, FrameType, clear, on_frame_clear, 0, 0, NULL, 0, 0, 0)                                                    \
    X(types, CodeType, replace, on_code_replace, 0, 0, NULL, 0, 0, 1)                                                  \
    /* what a subject compiles is the subject's */                                                                     \
    X(builtins, _, compile, on_made_code, 0, 0, NULL, 0, 0, 0)                                                         \
    X(_imp, _, get_frozen_object, on_made_code, 0, 0, NULL, 0, 1, 0)                                                   \
    X(marshal, _, load, on_made_code, 0, 0, NULL, 0, 0, 0)                                                             \
    X(marshal, _, loads, on_made_code, 0, 0, NULL, 0, 0, 0)                                                            \
    X(sys, _, __displayhook__, on_display, 0, 0, NULL, 0, 0, 0)                                                        \
    X(sys, _, settrace, on_trace, TRACE, 0, "sys.settrace", 0, 0, 0)                                                   \
    X(sys, _, setprofile, on_trace, PROFILE, 0, "sys.setprofile", 0, 0, 0)                                             \
    X(sys, _, gettrace, on_traced_by, TRACE, 0, NULL, 0, 0, 0)                                                         \
    X(sys, _, getprofile, on_traced_by, PROFILE, 0, NULL, 0, 0, 0)                                                     \
    X(sys, _, _settraceallthreads, on_tamper, 0, 0, "sys.settrace", 0, 1, 0)                                           \
    X(sys, _, _setprofileallthreads, on_tamper, 0, 0, "sys.setprofile", 0, 1, 0)                                       \
    X(_lsprof, Profiler, enable, on_profiler, 0, 0, NULL, 0, 1, 0)                                                     \
    X(_lsprof, Profiler, disable, on_profiler, 0, 0, NULL, 0, 1, 0)                                                    \
    X(sys, monitoring, use_tool_id, on_use_tool, 0, 0, NULL, 0, 1, 0)                                                  \
    X(sys, monitoring, free_tool_id, on_tool, 'f', 0, "sys.monitoring.free_tool_id", 0, 1, 0)                          \
    X(sys, monitoring, register_callback, on_tool, 'c', 0, "sys.monitoring.register_callback", 0, 1, 0)                \
    X(sys, monitoring, set_events, on_tool, 'e', 0, "sys.monitoring.set_events", 0, 1, 0)                              \
    X(sys, monitoring, get_events, on_tool, 0, 0, "sys.monitoring.get_events", 0, 1, 0)                                \
    X(sys, monitoring, set_local_events, on_tool, 'l', 0, "sys.monitoring.set_local_events", 0, 1, 0)                  \
    X(sys, monitoring, get_local_events, on_tool, 0, 0, "sys.monitoring.get_local_events", 0, 1, 0)                    \
    X(sys, monitoring, restart_events, on_restart_events, 0, 0, NULL, 0, 1, 0)                                         \
    X(sys, _, activate_stack_trampoline, on_tamper, 0, 0, NULL, 0, 1, 0)                                               \
    /* interpreters of their own would not carry the ContextVar */                                                     \
    X(_xxsubinterpreters, _, create, on_tamper, 0, 0, NULL, 0, 1, 0)                                                   \
    X(_xxsubinterpreters, _, run_string, on_tamper, 0, 0, NULL, 0, 1, 0)                                               \
    X(_xxsubinterpreters, _, run_func, on_tamper, 0, 0, NULL, 0, 1, 0)                                                 \
    X(_interpreters, _, create, on_tamper, 0, 0, NULL, 0, 1, 0)                                                        \
    X(_interpreters, _, exec, on_tamper, 0, 0, NULL, 0, 1, 0)                                                          \
    X(_interpreters, _, run_string, on_tamper, 0, 0, NULL, 0, 1, 0)                                                    \
    X(_interpreters, _, run_func, on_tamper, 0, 0, NULL, 0, 1, 0)                                                      \
    X(_interpreters, _, call, on_tamper, 0, 0, NULL, 0, 1, 0)                                                          \
    X(_testcapi, _, run_in_subinterp, on_tamper, 0, 0, NULL, 0, 1, 0)                                                  \
    X(_testcapi, _, run_in_subinterp_with_config, on_tamper, 0, 0, NULL, 0, 1, 0)                                      \
    /* native modules: where they come from, and patching what they bring */                                           \
    X(_imp, _, create_dynamic, on_create_native, 0, 0, "spec", 1, 0, 2)                                                \
    X(_imp, _, create_builtin, on_create_native, 0, 0, "spec", 0, 0, 2)                                                \
    X(_imp, _, exec_dynamic, on_exec_native, 0, 0, NULL, 0, 0, 2)                                                      \
    X(_imp, _, exec_builtin, on_exec_native, 0, 0, NULL, 0, 0, 2)                                                      \
    /* libraries that open files by themselves */                                                                      \
    X(_ssl, _SSLContext, load_cert_chain, on_certificates, OP_READ, 0, NULL, 0, 1, 0)                                  \
    X(_ssl, _SSLContext, load_verify_locations, on_certificates, OP_READ, 0, NULL, 0, 1, 0)                            \
    X(_ssl, _SSLContext, set_default_verify_paths, on_named_by_environment, 0, 0, "SSL_CERT_FILE SSL_CERT_DIR", 0, 1, 0)\
    X(_ssl, _SSLContext, load_dh_params, on_file_argument, OP_READ, 0, NULL, 0, 1, 0)                                   \
    X(_ssl, _, _test_decode_cert, on_file_argument, OP_READ, 0, NULL, 0, 1, 0)                                         \
    X(_locale, _, bindtextdomain, on_host_setting, 0, 0, "locale.bindtextdomain", 0, 1, 0)                             \
    X(_locale, _, textdomain, on_catalogue, 0, 0, "locale.textdomain", 0, 1, 0)                                        \
    X(_locale, _, gettext, on_catalogue, 0, 0, "locale.gettext", -1, 1, 0)                                             \
    X(_locale, _, dgettext, on_catalogue, 0, 0, "locale.dgettext", 0, 1, 0)                                            \
    X(_locale, _, dcgettext, on_catalogue, 0, 0, "locale.dcgettext", 0, 1, 0)                                          \
    X(syslog, _, openlog, on_system_log, 0, 0, NULL, 0, 1, 0)                                                          \
    X(syslog, _, syslog, on_system_log, 0, 0, NULL, 0, 1, 0)                                                           \
    X(syslog, _, closelog, on_system_log, 0, 0, NULL, 0, 1, 0)                                                         \
    X(syslog, _, setlogmask, on_system_log, 0, 0, NULL, 0, 1, 0)                                                       \
    X(termios, _, tcsetattr, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                             \
    X(termios, _, tcsendbreak, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                           \
    X(termios, _, tcdrain, on_descriptor, OP_MODIFY, 0, "fd", 0, 1, 0)                                                 \
    X(termios, _, tcflush, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                               \
    X(termios, _, tcflow, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                                \
    X(termios, _, tcsetwinsize, on_descriptor, WANT_MANAGE, 0, "fd", 0, 1, 0)                                          \
    X(time, _, clock_settime, on_tamper, 0, 0, "time", 0, 1, 0)                                                        \
    X(time, _, clock_settime_ns, on_tamper, 0, 0, "time", 0, 1, 0)                                                     \
    X(_signal, _, sigwait, on_tamper, 0, 0, "signal", 0, 1, 0)                                                         \
    X(_signal, _, sigwaitinfo, on_tamper, 0, 0, "signal", 0, 1, 0)                                                     \
    X(_signal, _, sigtimedwait, on_tamper, 0, 0, "signal", 0, 1, 0)                                                    \
    X(time, _, pthread_getcpuclockid, on_own_thread, 0, 0, "time.pthread_getcpuclockid", 0, 1, 0)                      \
    X(sys, _, setswitchinterval, on_host_setting, 0, 0, "sys.setswitchinterval", 0, 1, 0)                              \
    X(sys, _, set_int_max_str_digits, on_host_setting, 0, 0, "sys.set_int_max_str_digits", 0, 1, 0)                    \
    X(atexit, _, unregister, on_unregister, 0, 0, "atexit.unregister", 0, 0, 0)                                        \
    X(_lsprof, Profiler, _ccall_callback, on_enough_arguments, 0, 0, NULL, 4, 1, 0)                                    \
    X(_lsprof, Profiler, _creturn_callback, on_enough_arguments, 0, 0, NULL, 4, 1, 0)                                  \
    X(_lsprof, Profiler, _pystart_callback, on_enough_arguments, 0, 0, NULL, 2, 1, 0)                                  \
    X(_lsprof, Profiler, _pyreturn_callback, on_enough_arguments, 0, 0, NULL, 3, 1, 0)                                 \
    X(_lsprof, Profiler, _pythrow_callback, on_enough_arguments, 0, 0, NULL, 3, 1, 0)                                  \
    X(time, _, tzset, on_named_by_environment, 0, 0, "TZ", 0, 1, 0)                                                    \
    X(_curses, _, setupterm, on_named_by_environment, 0, 0, "TERMINFO TERMINFO_DIRS HOME", 0, 1, 0)                    \
    X(_curses, _, initscr, on_screen, 0, 0, "TERMINFO TERMINFO_DIRS HOME", 0, 1, 0)                      \
    X(readline, _, parse_and_bind, on_bind_line, 0, 0, NULL, 0, 1, 0)                                                  \
    X(faulthandler, _, dump_traceback, on_fault_file, 0, 0, "file", 0, 1, 0)                                           \
    X(_tkinter, _, create, on_tamper, 0, 0, NULL, 0, 1, 0)                                                             \
    X(_tkinter, TkappType, eval, on_tamper, 0, 0, NULL, 0, 1, 0)                                                       \
    X(_tkinter, TkappType, evalfile, on_tamper, 0, 0, NULL, 0, 1, 0)                                                   \
    X(_tkinter, TkappType, call, on_tamper, 0, 0, NULL, 0, 1, 0)                                                       \
    X(_tkinter, TkappType, record, on_tamper, 0, 0, NULL, 0, 1, 0)                                                     \
    X(readline, _, read_history_file, on_file_argument, OP_READ, 0, NULL, 0, 1, 0)                                     \
    X(readline, _, read_init_file, on_file_argument, OP_READ, 0, NULL, 0, 1, 0)                                        \
    X(readline, _, write_history_file, on_file_argument, OP_CREATE | OP_MODIFY, 0, NULL, 0, 1, 0)                      \
    X(readline, _, append_history_file, on_file_argument, OP_CREATE | OP_MODIFY, 0, NULL, 1, 1, 0)                     \
    X(_dbm, _, open, on_dbm, 0, 0, "filename", 0, 1, 0)                                                                \
    X(_gdbm, _, open, on_dbm, 0, 0, "filename", 0, 1, 0)                                                               \
    X(_posixshmem, _, shm_open, on_shared_memory, OP_READ | OP_CREATE | OP_MODIFY, 0, "path", 0, 1, 0)                 \
    X(_posixshmem, _, shm_unlink, on_shared_memory, OP_DELETE, 0, "path", 0, 1, 0)                                     \
    X(_sqlite3, Connection, execute, on_sql, 0, 0, NULL, 0, 1, 0)                                                      \
    X(_sqlite3, Connection, executemany, on_sql, 0, 0, NULL, 0, 1, 0)                                                  \
    X(_sqlite3, Connection, executescript, on_sql, 0, 0, NULL, 0, 1, 0)                                                \
    X(_sqlite3, Cursor, execute, on_sql, 0, 0, NULL, 0, 1, 0)                                                          \
    X(_sqlite3, Cursor, executemany, on_sql, 0, 0, NULL, 0, 1, 0)                                                      \
    X(_sqlite3, Cursor, executescript, on_sql, 0, 0, NULL, 0, 1, 0)                                                    \
    X(_sqlite3, Connection, set_authorizer, on_authoriser, 0, 0, NULL, 0, 1, 0)                                        \
    X(_sqlite3, Connection, enable_load_extension, on_tamper, 0, 0, NULL, 0, 1, 0)                                     \
    X(_sqlite3, Connection, load_extension, on_tamper, 0, 0, NULL, 0, 1, 0)                                            \
    X(_cffi_backend, _, load_library, on_foreign_library, 0, 0, "_cffi_backend", 0, 1, 2)                                      \
    X(_cffi_backend, FFI, dlopen, on_foreign_library, 0, 0, "_cffi_backend", 0, 1, 2)                                          \
    X(_cffi_backend, FFI, cast, on_foreign, 0, 0, "_cffi_backend", 0, 1, 0)                                            \
    X(_cffi_backend, FFI, memmove, on_foreign, 0, 0, "_cffi_backend", 0, 1, 0)                                         \
    X(_cffi_backend, _, cast, on_foreign, 0, 0, "_cffi_backend", 0, 1, 0)                                              \
    X(_cffi_backend, _, memmove, on_foreign, 0, 0, "_cffi_backend", 0, 1, 0)                                           \
    X(_ctypes, _, dlopen, on_foreign_library, 0, 0, "_ctypes", 0, 1, 2)                                                        \
    X(_ctypes, _, dlsym, on_foreign, 0, 0, "_ctypes", 0, 1, 0)                                                         \
    X(_ctypes, _, call_function, on_foreign, 0, 0, "_ctypes", 0, 1, 0)                                                 \
    X(_ctypes, _, call_cdeclfunction, on_foreign, 0, 0, "_ctypes", 0, 1, 0)                                            \
    X(_ctypes, _, PyObj_FromPtr, on_foreign, 0, 0, "_ctypes", 0, 1, 0)                                                 \
    X(_ctypes, _, addressof, on_foreign, 0, 0, "_ctypes", 0, 1, 0)

/* A C function gets no hint which entry it was called through, so every row has trampolines of its own, one for each
 * calling convention an interpreter may have chosen for it. */
#define ROW_ID(module, owner, name) row_##module##_##owner##_##name
#define NAME_ID(module, owner, name, handler, operations, how, argument, index, optional, always) ROW_ID(module, owner, name),
enum { ROWS(NAME_ID) ROW_COUNT };

#define IDLE LIKELY(live_states == 0 && row->always < 2)
#define ORIGINAL(type) ((type)(void (*)(void))row->original)
typedef PyObject *(*T0)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
typedef PyObject *(*T1)(PyObject *, PyObject *const *, Py_ssize_t);
typedef PyObject *(*T2)(PyObject *, PyObject *);
typedef PyObject *(*T5)(PyObject *, PyObject *, PyObject *);
typedef PyObject *(*T6)(PyObject *, PyTypeObject *, PyObject *const *, size_t, PyObject *);

#define TRAMPOLINES(id)                                                                                                \
    static PyObject *id##_0(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)                \
    {                                                                                                                  \
        Row *row = &rows[id];                                                                                          \
        return IDLE ? ORIGINAL(T0)(self, args, nargs, kwnames) : row_call(row, self, NULL, args, nargs, kwnames);      \
    }                                                                                                                  \
    static PyObject *id##_1(PyObject *self, PyObject *const *args, Py_ssize_t nargs)                                   \
    {                                                                                                                  \
        Row *row = &rows[id];                                                                                          \
        return IDLE ? ORIGINAL(T1)(self, args, nargs) : row_call(row, self, NULL, args, nargs, NULL);                  \
    }                                                                                                                  \
    static PyObject *id##_2(PyObject *self, PyObject *arg)                                                             \
    {                                                                                                                  \
        Row *row = &rows[id];                                                                                          \
        return IDLE ? ORIGINAL(T2)(self, arg) : row_call(row, self, NULL, &arg, 1, NULL);                              \
    }                                                                                                                  \
    static PyObject *id##_3(PyObject *self, PyObject *unused)                                                          \
    {                                                                                                                  \
        Row *row = &rows[id];                                                                                          \
        return IDLE ? ORIGINAL(T2)(self, NULL) : row_call(row, self, NULL, &unused, 0, NULL);                          \
    }                                                                                                                  \
    static PyObject *id##_4(PyObject *self, PyObject *args)                                                            \
    {                                                                                                                  \
        Row *row = &rows[id];                                                                                          \
        return IDLE ? ORIGINAL(T2)(self, args) : row_call_tuple(row, self, args, NULL);                                \
    }                                                                                                                  \
    static PyObject *id##_5(PyObject *self, PyObject *args, PyObject *kwargs)                                          \
    {                                                                                                                  \
        Row *row = &rows[id];                                                                                          \
        return IDLE ? ORIGINAL(T5)(self, args, kwargs) : row_call_tuple(row, self, args, kwargs);                      \
    }                                                                                                                  \
    static PyObject *id##_6(PyObject *self, PyTypeObject *type, PyObject *const *args, size_t nargs, PyObject *kwnames)\
    {                                                                                                                  \
        Row *row = &rows[id];                                                                                          \
        return IDLE ? ORIGINAL(T6)(self, type, args, nargs, kwnames)                                                   \
                    : row_call(row, self, type, args, (Py_ssize_t)nargs, kwnames);                                     \
    }

#define MAKE_TRAMPOLINES(module, owner, name, handler, operations, how, argument, index, optional, always)             \
    TRAMPOLINES(row_##module##_##owner##_##name)
ROWS(MAKE_TRAMPOLINES)

#define F(id, n) (PyCFunction)(void (*)(void))id##_##n
#define LIST(id) {F(id, 0), F(id, 1), F(id, 2), F(id, 3), F(id, 4), F(id, 5), F(id, 6)}
#define MAKE_ROW(module, owner, name, handler, operations, how, argument, index, optional, always)                     \
    {#module, #owner[0] == '_' && #owner[1] == '\0' ? "" : #owner, #name, handler, operations, how, argument, index,   \
     optional, always, LIST(row_##module##_##owner##_##name)},

Row rows[] = {ROWS(MAKE_ROW)};
const int row_count = ROW_COUNT;

/* Modules whose types or functions are patched by code, not by a row of the table. */
static const LatePatch late[] = {
    {"_sqlite3", databases_patch, true},
    {"_multiprocessing", semaphores_patch, true},
    {"_ctypes", ctypes_patch, true},
    {"_socket", socket_patch, true},
    {"_ssl", ssl_patch, true},
    {"_io", fileio_patch, true},
    {"_thread", local_patch, true},
    {"_asyncio", task_patch, true},
    {"_cffi_backend", cffi_patch, true},
    {"ctypes", ctypes_functions, false},
    {"concurrent.futures.thread", executor_patch, false},
    {"anyio._backends._asyncio", anyio_patch, false},
    {"concurrent.futures._base", future_patch, false},
    {"asyncio.events", asyncio_patch, false},
    {"asyncio.base_events", loop_patch, false},
    {"multiprocessing.pool", pool_patch, false},
    {"threading", threading_patch, false},
    {"weakref", finalize_patch, false},
};

void table_ready(void)
{
    stat_row = &rows[row_posix___stat];
    spawn_row = &rows[row_posix___posix_spawn];
    execve_row = &rows[row_posix___execve];
    getaddrinfo_row = &rows[row__socket___getaddrinfo];
    late_tables(rows, ROW_COUNT, late, sizeof late / sizeof *late);
}
