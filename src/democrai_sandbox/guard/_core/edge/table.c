/* The table of all patched builtins. Each row names the function, its handler, and the columns that the handler
 * reads; patching.h explains the columns.
 *
 * Slots of types (FileIO.__init__, sqlite3.Connection.__init__, ...) are not in this table. The file that handles
 * them calls patch_slot(). Calls that raise an audit event and need no protection against races are in audit.c. */
#include "edge/edge.h"

#define DIR (FOLLOW | DEFAULTS)
#define ROWS(X)                                                                                                        \
    X(posix, _, stat, on_path, .operations = OP_READ, .how = FOLLOW | STAT | PROBE | LOOK, .argument = "path")         \
    X(posix, _, lstat, on_path, .operations = OP_READ, .how = STAT | PROBE | LOOK, .argument = "path")                 \
    X(posix, _, access, on_path, .operations = OP_READ, .how = FOLLOW | PROBE | ANSWERS | LOOK, .argument = "path")    \
    X(posix, _, readlink, on_path, .operations = OP_READ, .how = PARENT | TAKES_FOLDER | PROBE | LOOK,                 \
      .argument = "path")                                                                                              \
    X(posix, _, listdir, on_listdir, .operations = OP_READ, .how = DIR, .argument = "path")                            \
    X(posix, _, scandir, on_scan, .operations = OP_READ, .how = DIR, .argument = "path")                               \
    X(posix, DirEntry, stat, on_entry, .operations = OP_READ, .how = STAT)                                             \
    X(posix, DirEntry, is_dir, on_entry, .operations = OP_READ)                                                        \
    X(posix, DirEntry, is_file, on_entry, .operations = OP_READ)                                                       \
    X(posix, _, chdir, on_path, .operations = OP_READ, .how = FOLLOW, .argument = "path")                              \
    X(posix, _, statvfs, on_path, .operations = OP_READ, .how = FOLLOW, .argument = "path")                            \
    X(posix, _, pathconf, on_path, .operations = OP_READ, .how = FOLLOW, .argument = "path")                           \
    X(posix, _, getxattr, on_path, .operations = OP_READ, .how = FOLLOW, .argument = "path", .optional = true)         \
    X(posix, _, listxattr, on_path, .operations = OP_READ, .how = DIR, .argument = "path", .optional = true)           \
    X(posix, _, setxattr, on_path, .operations = OP_MODIFY, .how = FOLLOW, .argument = "path", .optional = true)       \
    X(posix, _, removexattr, on_path, .operations = OP_MODIFY, .how = FOLLOW, .argument = "path", .optional = true)    \
    X(posix, _, chmod, on_path, .operations = OP_MODIFY, .how = FOLLOW, .argument = "path")                            \
    X(posix, _, chown, on_path, .operations = OP_MODIFY, .how = FOLLOW, .argument = "path")                            \
    X(posix, _, lchown, on_path, .operations = OP_MODIFY, .how = PARENT, .argument = "path")                           \
    X(posix, _, utime, on_path, .operations = OP_MODIFY, .how = FOLLOW, .argument = "path")                            \
    X(posix, _, truncate, on_path, .operations = OP_MODIFY, .how = FOLLOW, .argument = "path")                         \
    X(posix, _, mkdir, on_path, .operations = OP_CREATE, .how = PARENT | TAKES_FOLDER, .argument = "path")             \
    X(posix, _, mkfifo, on_path, .operations = OP_CREATE, .how = PARENT | TAKES_FOLDER, .argument = "path")            \
    X(posix, _, mknod, on_device, .operations = OP_CREATE, .how = PARENT | TAKES_FOLDER, .argument = "path")           \
    X(posix, _, unlink, on_path, .operations = OP_DELETE, .how = PARENT | TAKES_FOLDER | REMOVES, .argument = "path")  \
    X(posix, _, remove, on_path, .operations = OP_DELETE, .how = PARENT | TAKES_FOLDER | REMOVES, .argument = "path")  \
    X(posix, _, rmdir, on_path, .operations = OP_DELETE, .how = PARENT | TAKES_FOLDER | REMOVES | REMOVES_FOLDER,      \
      .argument = "path")                                                                                              \
    X(posix, _, rename, on_path_pair, .operations = OP_DELETE, .how = PARENT | TAKES_FOLDER, .argument = "src")        \
    X(posix, _, replace, on_path_pair, .operations = OP_DELETE, .how = PARENT | TAKES_FOLDER, .argument = "src")       \
    X(posix, _, link, on_path_pair, .operations = OP_READ, .how = PARENT, .argument = "src")                           \
    X(posix, _, symlink, on_symlink, .operations = OP_CREATE, .how = PARENT | TAKES_FOLDER, .argument = "src")         \
    X(posix, _, open, on_open, .argument = "path")                                                                     \
    X(posix, _, chroot, on_process, .public_module = "os", .optional = true)                                           \
    /* descriptors: by number, checked by what they point to unless made under the guard */                            \
    X(posix, _, read, on_descriptor, .operations = OP_READ, .argument = "fd")                                          \
    X(posix, _, readv, on_descriptor, .operations = OP_READ, .argument = "fd", .optional = true)                       \
    X(posix, _, readinto, on_descriptor, .operations = OP_READ, .argument = "fd", .optional = true)                    \
    X(posix, _, pread, on_descriptor, .operations = OP_READ | WANT_PLACE, .argument = "fd")                            \
    X(posix, _, preadv, on_descriptor, .operations = OP_READ | WANT_PLACE, .argument = "fd", .optional = true)         \
    X(posix, _, lseek, on_descriptor, .operations = WANT_MANAGE, .argument = "fd")                                     \
    X(posix, _, fstat, on_descriptor, .operations = OP_READ, .argument = "fd")                                         \
    X(posix, _, fstatvfs, on_descriptor, .operations = OP_READ, .argument = "fd")                                      \
    X(posix, _, fpathconf, on_descriptor, .operations = OP_READ, .argument = "fd")                                     \
    X(posix, _, fchdir, on_descriptor, .operations = OP_READ, .argument = "fd")                                        \
    X(posix, _, dup, on_new_descriptor, .operations = OP_READ, .argument = "fd")                                       \
    X(posix, _, write, on_descriptor, .operations = OP_MODIFY, .argument = "fd")                                       \
    X(posix, _, writev, on_descriptor, .operations = OP_MODIFY, .argument = "fd", .optional = true)                    \
    X(posix, _, pwrite, on_descriptor, .operations = OP_MODIFY | WANT_PLACE, .argument = "fd")                         \
    X(posix, _, pwritev, on_descriptor, .operations = OP_MODIFY | WANT_PLACE, .argument = "fd", .optional = true)      \
    X(posix, _, ftruncate, on_descriptor, .operations = OP_MODIFY | WANT_PLACE, .argument = "fd")                      \
    X(posix, _, fchmod, on_descriptor, .operations = OP_MODIFY | WANT_PATH, .argument = "fd")                          \
    X(posix, _, fchown, on_descriptor, .operations = OP_MODIFY | WANT_PATH, .argument = "fd")                          \
    X(posix, _, posix_fallocate, on_descriptor, .operations = OP_MODIFY | WANT_PLACE, .argument = "fd",                \
      .optional = true)                                                                                                \
    X(posix, _, posix_fadvise, on_descriptor, .operations = OP_READ, .argument = "fd", .optional = true)               \
    X(posix, _, lockf, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)                   \
    X(posix, _, close, on_close, .operations = WANT_MANAGE, .argument = "fd")                                          \
    X(posix, _, set_inheritable, on_descriptor, .operations = WANT_MANAGE, .argument = "fd")                           \
    X(posix, _, set_blocking, on_descriptor, .operations = WANT_MANAGE, .argument = "fd")                              \
    X(posix, _, tcsetpgrp, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)               \
    X(posix, _, grantpt, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)                 \
    X(posix, _, ptsname, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)                 \
    X(posix, _, unlockpt, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)                \
    X(posix, _, eventfd_read, on_descriptor, .operations = OP_READ, .argument = "fd", .optional = true)                \
    X(posix, _, eventfd_write, on_descriptor, .operations = OP_MODIFY, .argument = "fd", .optional = true)             \
    X(posix, _, timerfd_settime, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)         \
    X(posix, _, timerfd_settime_ns, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)      \
    X(posix, _, sendfile, on_descriptor_pair, .operations = OP_READ, .argument = "in_fd", .index = 1)                  \
    X(posix, _, copy_file_range, on_descriptor_pair, .operations = OP_READ, .argument = "src", .optional = true)       \
    X(posix, _, splice, on_descriptor_pair, .operations = OP_READ, .argument = "src", .optional = true)                \
    X(posix, _, dup2, on_dup2, .operations = OP_READ, .argument = "fd")                                                \
    X(posix, _, closerange, on_refuse_descriptor, .argument = "fd")                                                    \
    X(posix, _, login_tty, on_refuse_descriptor, .argument = "fd", .optional = true)                                   \
    X(posix, _, pipe, on_new_descriptor)                                                                               \
    X(posix, _, pipe2, on_new_descriptor, .optional = true)                                                            \
    X(posix, _, openpty, on_new_descriptor, .optional = true)                                                          \
    X(posix, _, posix_openpt, on_new_descriptor, .optional = true)                                                     \
    X(posix, _, memfd_create, on_new_descriptor, .optional = true)                                                     \
    X(posix, _, eventfd, on_new_descriptor, .optional = true)                                                          \
    X(_socket, socket, connect, on_connect, .optional = true)                                                          \
    X(_socket, socket, connect_ex, on_connect, .optional = true)                                                       \
    X(_socket, socket, send, on_send, .optional = true)                                                                \
    X(_socket, socket, sendall, on_send, .optional = true)                                                             \
    X(_socket, socket, sendto, on_sendto, .optional = true)                                                            \
    X(_socket, socket, sendmsg, on_sendmsg, .optional = true)                                                          \
    X(_socket, socket, recv, on_receive, .optional = true)                                                             \
    X(_socket, socket, recv_into, on_receive, .optional = true)                                                        \
    X(_socket, socket, recvfrom, on_receive, .optional = true)                                                         \
    X(_socket, socket, recvfrom_into, on_receive, .optional = true)                                                    \
    X(_socket, socket, recvmsg, on_receive, .optional = true)                                                          \
    X(_socket, socket, recvmsg_into, on_receive, .optional = true)                                                     \
    X(_io, FileIO, truncate, on_file_place)                                                                            \
    X(_io, FileIO, seek, on_file_place)                                                                                \
    X(_io, FileIO, write, on_file_write)                                                                               \
    X(_socket, socket, sendmsg_afalg, on_afalg, .optional = true)                                                      \
    X(_socket, socket, setsockopt, on_option, .optional = true)                                                        \
    X(_socket, socket, bind, on_bind, .optional = true)                                                                \
    X(_socket, socket, listen, on_listen, .optional = true)                                                            \
    X(_socket, socket, _accept, on_accept, .optional = true)                                                           \
    X(_socket, socket, detach, on_detach, .optional = true)                                                            \
    X(_socket, _, socketpair, on_socketpair, .optional = true)                                                         \
    X(_socket, _, getaddrinfo, on_getaddrinfo, .optional = true, .scope = SCOPE_ALWAYS)                                \
    X(_socket, _, gethostbyname, on_gethostbyname, .optional = true, .scope = SCOPE_ALWAYS)                            \
    X(_socket, _, gethostbyname_ex, on_gethostbyname, .optional = true, .scope = SCOPE_ALWAYS)                         \
    X(_socket, _, gethostbyaddr, on_reverse, .optional = true)                                                         \
    X(_socket, _, getnameinfo, on_reverse, .optional = true)                                                           \
    X(_ssl, _SSLContext, _wrap_socket, on_wrap_socket, .optional = true)                                               \
    X(_ssl, _SSLContext, _wrap_bio, on_wrap_bio, .optional = true)                                                     \
    X(_ssl, MemoryBIO, read, on_bio_read, .optional = true)                                                            \
    X(_ssl, MemoryBIO, write, on_bio_write, .optional = true)                                                          \
    X(_ssl, _SSLSocket, write, on_tls_write, .optional = true)                                                         \
    X(_ssl, _SSLSocket, read, on_tls_read, .optional = true)                                                           \
    X(_socket, _, dup, on_new_descriptor, .operations = OP_READ, .argument = "", .optional = true)                     \
    X(_socket, _, close, on_close, .operations = WANT_MANAGE, .argument = "", .optional = true)                        \
    X(posix, _, timerfd_create, on_new_descriptor, .optional = true)                                                   \
    /* processes: starting them, becoming another one, and acting on others */                                         \
    X(_posixsubprocess, _, fork_exec, on_fork_exec, .public_module = "_posixsubprocess", .optional = true)             \
    X(posix, _, system, on_system, .public_module = "os")                                                              \
    X(posix, _, posix_spawn, on_spawn, .public_module = "os", .argument = "env", .index = 2, .optional = true)         \
    X(posix, _, posix_spawnp, on_spawn, .public_module = "os", .argument = "env", .index = 2, .optional = true)        \
    X(posix, _, execv, on_spawn, .public_module = "os", .index = -1)                                                   \
    X(posix, _, execve, on_spawn, .public_module = "os", .argument = "env", .index = 2)                                \
    X(posix, _, fork, on_fork, .public_module = "os")                                                                  \
    X(posix, _, fork1, on_fork, .public_module = "os", .optional = true)                                               \
    X(posix, _, forkpty, on_fork, .public_module = "os", .optional = true)                                             \
    X(posix, _, kill, on_process, .public_module = "os")                                                               \
    X(posix, _, killpg, on_process, .public_module = "os")                                                             \
    X(posix, _, abort, on_process, .public_module = "os")                                                              \
    X(posix, _, _exit, on_process, .public_module = "os")                                                              \
    X(posix, _, pidfd_open, on_process_handle, .public_module = "os", .optional = true)                                \
    X(posix, _, setns, on_process, .public_module = "os", .optional = true)                                            \
    X(posix, _, unshare, on_process, .public_module = "os", .optional = true)                                          \
    X(posix, _, setuid, on_process, .public_module = "os")                                                             \
    X(posix, _, seteuid, on_process, .public_module = "os")                                                            \
    X(posix, _, setreuid, on_process, .public_module = "os")                                                           \
    X(posix, _, setresuid, on_process, .public_module = "os", .optional = true)                                        \
    X(posix, _, setgid, on_process, .public_module = "os")                                                             \
    X(posix, _, setegid, on_process, .public_module = "os")                                                            \
    X(posix, _, setregid, on_process, .public_module = "os")                                                           \
    X(posix, _, setresgid, on_process, .public_module = "os", .optional = true)                                        \
    X(posix, _, setgroups, on_process, .public_module = "os")                                                          \
    X(posix, _, initgroups, on_process, .public_module = "os", .optional = true)                                       \
    X(posix, _, setsid, on_process, .public_module = "os")                                                             \
    X(posix, _, setpgid, on_process, .public_module = "os")                                                            \
    X(posix, _, setpgrp, on_process, .public_module = "os", .optional = true)                                          \
    X(posix, _, umask, on_umask, .public_module = "os")                                                                \
    X(posix, _, register_at_fork, on_callables, .optional = true)                                                      \
    X(_thread, _, interrupt_main, on_process, .public_module = "_thread", .optional = true)                            \
    X(_signal, _, raise_signal, on_own_signal, .public_module = "signal", .optional = true)                            \
    X(_signal, _, setitimer, on_own_signal, .public_module = "signal", .optional = true)                               \
    X(_signal, _, alarm, on_own_signal, .public_module = "signal", .optional = true)                                   \
    X(_signal, _, pidfd_send_signal, on_process, .public_module = "signal", .optional = true)                          \
    X(spwd, _, getspnam, on_secret_database, .optional = true)                                                         \
    X(spwd, _, getspall, on_secret_database, .optional = true)                                                         \
    /* the process belongs to the host */                                                                              \
    X(posix, _, wait, on_wait, .denied = "os.wait", .index = -1)                                                       \
    X(posix, _, wait3, on_wait, .denied = "os.wait3", .index = -1, .optional = true)                                   \
    X(posix, _, waitpid, on_wait, .denied = "os.waitpid")                                                              \
    X(posix, _, wait4, on_wait, .denied = "os.wait4", .optional = true)                                                \
    X(posix, _, waitid, on_wait, .denied = "os.waitid", .index = 1, .optional = true)                                  \
    X(posix, _, setpriority, on_host_setting, .denied = "os.setpriority", .optional = true)                            \
    X(posix, _, sched_setaffinity, on_host_setting, .denied = "os.sched_setaffinity", .optional = true)                \
    X(posix, _, sched_setscheduler, on_host_setting, .denied = "os.sched_setscheduler", .optional = true)              \
    X(posix, _, sched_setparam, on_host_setting, .denied = "os.sched_setparam", .optional = true)                      \
    X(posix, _, nice, on_nice, .denied = "os.nice", .optional = true)                                                  \
    X(_signal, _, pthread_sigmask, on_signal_mask, .denied = "signal.pthread_sigmask", .optional = true)               \
    X(_signal, _, siginterrupt, on_host_setting, .denied = "signal.siginterrupt", .optional = true)                    \
    X(atexit, _, _clear, on_host_setting, .denied = "atexit._clear")                                                   \
    X(atexit, _, _run_exitfuncs, on_host_setting, .denied = "atexit._run_exitfuncs")                                   \
    X(_multiprocessing, _, sem_unlink, on_process, .public_module = "_multiprocessing", .optional = true)              \
    X(_multiprocessing, SemLock, _rebuild, on_process, .public_module = "_multiprocessing", .optional = true)          \
    X(select, epoll, fromfd, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)             \
    X(faulthandler, _, disable, on_host_setting, .denied = "faulthandler.disable", .optional = true)                   \
    X(faulthandler, _, unregister, on_host_setting, .denied = "faulthandler.unregister", .optional = true)             \
    X(faulthandler, _, cancel_dump_traceback_later, on_host_setting, .denied = "faulthandler", .optional = true)       \
    X(faulthandler, _, _sigsegv, on_tamper, .optional = true)                                                          \
    X(faulthandler, _, _sigabrt, on_tamper, .optional = true)                                                          \
    X(faulthandler, _, _sigfpe, on_tamper, .optional = true)                                                           \
    X(faulthandler, _, _read_null, on_tamper, .optional = true)                                                        \
    X(faulthandler, _, _stack_overflow, on_tamper, .optional = true)                                                   \
    X(faulthandler, _, _fatal_error_c_thread, on_tamper, .optional = true)                                             \
    X(faulthandler, _, enable, on_host_setting, .denied = "faulthandler.enable", .optional = true)                     \
    X(faulthandler, _, dump_traceback_later, on_host_setting, .denied = "faulthandler.dump_traceback_later",           \
      .optional = true)                                                                                                \
    X(faulthandler, _, register, on_host_setting, .denied = "faulthandler.register", .optional = true)                 \
    X(sys, _, setrecursionlimit, on_host_setting, .denied = "sys.setrecursionlimit")                                   \
    X(_socket, _, setdefaulttimeout, on_shared_setting, .denied = "socket.setdefaulttimeout", .optional = true)        \
    X(gc, _, enable, on_collector, .denied = "gc.enable", .optional = true)                                            \
    X(gc, _, disable, on_collector, .denied = "gc.disable", .optional = true)                                          \
    X(gc, _, set_threshold, on_collector, .denied = "gc.set_threshold", .optional = true)                              \
    X(gc, _, set_debug, on_shared_setting, .denied = "gc.set_debug", .optional = true)                                 \
    X(gc, _, freeze, on_collector, .denied = "gc.freeze", .optional = true)                                            \
    X(gc, _, unfreeze, on_collector, .denied = "gc.unfreeze", .optional = true)                                        \
    X(_codecs, _, register, on_codec_search, .denied = "codecs.register")                                              \
    X(_codecs, _, unregister, on_codec_removal, .denied = "codecs.unregister")                                         \
    X(_codecs, _, register_error, on_register_error, .denied = "codecs.register_error")                                \
    X(_thread, _, stack_size, on_stack_size, .denied = "threading.stack_size")                                         \
    /* callables kept for later run under the guard that handed them over */                                           \
    X(_thread, _, start_new_thread, on_callable, .argument = "function")                                               \
    X(_thread, _, start_new, on_callable, .argument = "function", .optional = true)                                    \
    X(_thread, _, start_joinable_thread, on_callable, .argument = "function", .optional = true)                        \
    X(atexit, _, register, on_callable, .argument = "func")                                                            \
    X(_signal, _, set_wakeup_fd, on_wakeup_number, .optional = true)                                                   \
    X(_signal, _, signal, on_signal, .argument = "handler", .index = 1, .scope = SCOPE_ALL_CALLERS)                    \
    X(_weakref, _, proxy, on_callable, .argument = "callback", .index = 1)                                             \
    X(sys, _, set_asyncgen_hooks, on_callables)                                                                        \
    X(_asyncio, Future, add_done_callback, on_done_callback, .argument = "fn", .optional = true,                       \
      .scope = SCOPE_ALWAYS)                                                                                           \
    X(_asyncio, Task, add_done_callback, on_done_callback, .argument = "fn", .optional = true, .scope = SCOPE_ALWAYS)  \
    /* losing the context is not losing the guard */                                                                   \
    X(_contextvars, Context, keys, on_context_view, .scope = SCOPE_ALWAYS)                                             \
    X(_contextvars, Context, values, on_context_view, .scope = SCOPE_ALWAYS)                                           \
    X(_contextvars, Context, items, on_context_view, .scope = SCOPE_ALWAYS)                                            \
    X(_contextvars, Context, run, on_context_run, .scope = SCOPE_ALL_CALLERS)                                          \
    X(_contextvars, ContextVar, set, on_context_variable, .scope = SCOPE_ALL_CALLERS)                                  \
    X(_contextvars, ContextVar, reset, on_context_variable, .scope = SCOPE_ALL_CALLERS)                                \
    X(types, MethodType, __reduce__, on_method_reduce, .optional = true)                                               \
    X(types, FrameType, clear, on_frame_clear)                                                                         \
    X(types, CodeType, replace, on_code_replace, .scope = SCOPE_ALL_CALLERS)                                           \
    /* what a subject compiles is the subject's */                                                                     \
    X(builtins, _, compile, on_made_code)                                                                              \
    X(_imp, _, get_frozen_object, on_made_code, .optional = true)                                                      \
    X(marshal, _, load, on_made_code)                                                                                  \
    X(marshal, _, loads, on_made_code)                                                                                 \
    X(sys, _, __displayhook__, on_display)                                                                             \
    X(sys, _, settrace, on_trace, .kind = TRACE, .denied = "sys.settrace")                                             \
    X(sys, _, setprofile, on_trace, .kind = PROFILE, .denied = "sys.setprofile")                                       \
    X(sys, _, gettrace, on_traced_by, .kind = TRACE)                                                                   \
    X(sys, _, getprofile, on_traced_by, .kind = PROFILE)                                                               \
    X(sys, _, _settraceallthreads, on_tamper, .optional = true)                                                        \
    X(sys, _, _setprofileallthreads, on_tamper, .optional = true)                                                      \
    X(_lsprof, Profiler, enable, on_profiler, .optional = true)                                                        \
    X(_lsprof, Profiler, disable, on_profiler, .optional = true)                                                       \
    X(sys, monitoring, use_tool_id, on_use_tool, .optional = true)                                                     \
    X(sys, monitoring, free_tool_id, on_tool, .kind = TOOL_FREE, .denied = "sys.monitoring.free_tool_id",              \
      .optional = true)                                                                                                \
    X(sys, monitoring, register_callback, on_tool, .kind = TOOL_CALLBACK,                                              \
      .denied = "sys.monitoring.register_callback", .optional = true)                                                  \
    X(sys, monitoring, set_events, on_tool, .kind = TOOL_EVENTS, .denied = "sys.monitoring.set_events",                \
      .optional = true)                                                                                                \
    X(sys, monitoring, get_events, on_tool, .denied = "sys.monitoring.get_events", .optional = true)                   \
    X(sys, monitoring, set_local_events, on_tool, .kind = TOOL_LOCAL_EVENTS,                                           \
      .denied = "sys.monitoring.set_local_events", .optional = true)                                                   \
    X(sys, monitoring, get_local_events, on_tool, .denied = "sys.monitoring.get_local_events", .optional = true)       \
    X(sys, monitoring, restart_events, on_restart_events, .optional = true)                                            \
    X(sys, _, activate_stack_trampoline, on_tamper, .optional = true)                                                  \
    /* other interpreters would not carry the ContextVar */                                                            \
    X(_xxsubinterpreters, _, create, on_tamper, .optional = true)                                                      \
    X(_xxsubinterpreters, _, run_string, on_tamper, .optional = true)                                                  \
    X(_xxsubinterpreters, _, run_func, on_tamper, .optional = true)                                                    \
    X(_interpreters, _, create, on_tamper, .optional = true)                                                           \
    X(_interpreters, _, exec, on_tamper, .optional = true)                                                             \
    X(_interpreters, _, run_string, on_tamper, .optional = true)                                                       \
    X(_interpreters, _, run_func, on_tamper, .optional = true)                                                         \
    X(_interpreters, _, call, on_tamper, .optional = true)                                                             \
    X(_testcapi, _, run_in_subinterp, on_tamper, .optional = true)                                                     \
    X(_testcapi, _, run_in_subinterp_with_config, on_tamper, .optional = true)                                         \
    /* native modules: where they come from, and patching what they bring */                                           \
    X(_imp, _, create_dynamic, on_create_native, .argument = "spec", .has_file = true, .scope = SCOPE_ALWAYS)          \
    X(_imp, _, create_builtin, on_create_native, .argument = "spec", .scope = SCOPE_ALWAYS)                            \
    X(_imp, _, exec_dynamic, on_exec_native, .scope = SCOPE_ALWAYS)                                                    \
    X(_imp, _, exec_builtin, on_exec_native, .scope = SCOPE_ALWAYS)                                                    \
    /* libraries that open files in native code */                                                                     \
    X(_ssl, _SSLContext, load_cert_chain, on_certificates, .operations = OP_READ, .optional = true)                    \
    X(_ssl, _SSLContext, load_verify_locations, on_certificates, .operations = OP_READ, .optional = true)              \
    X(_ssl, _SSLContext, set_default_verify_paths, on_named_by_environment, .variables = "SSL_CERT_FILE SSL_CERT_DIR", \
      .optional = true)                                                                                                \
    X(_ssl, _SSLContext, load_dh_params, on_file_argument, .operations = OP_READ, .optional = true)                    \
    X(_ssl, _, _test_decode_cert, on_file_argument, .operations = OP_READ, .optional = true)                           \
    X(_locale, _, bindtextdomain, on_host_setting, .denied = "locale.bindtextdomain", .optional = true)                \
    X(_locale, _, textdomain, on_catalogue, .denied = "locale.textdomain", .optional = true)                           \
    X(_locale, _, gettext, on_catalogue, .denied = "locale.gettext", .index = -1, .optional = true)                    \
    X(_locale, _, dgettext, on_catalogue, .denied = "locale.dgettext", .optional = true)                               \
    X(_locale, _, dcgettext, on_catalogue, .denied = "locale.dcgettext", .optional = true)                             \
    X(syslog, _, openlog, on_system_log, .optional = true)                                                             \
    X(syslog, _, syslog, on_system_log, .optional = true)                                                              \
    X(syslog, _, closelog, on_system_log, .optional = true)                                                            \
    X(syslog, _, setlogmask, on_system_log, .optional = true)                                                          \
    X(termios, _, tcsetattr, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)             \
    X(termios, _, tcsendbreak, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)           \
    X(termios, _, tcdrain, on_descriptor, .operations = OP_MODIFY, .argument = "fd", .optional = true)                 \
    X(termios, _, tcflush, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)               \
    X(termios, _, tcflow, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)                \
    X(termios, _, tcsetwinsize, on_descriptor, .operations = WANT_MANAGE, .argument = "fd", .optional = true)          \
    X(time, _, clock_settime, on_tamper, .optional = true)                                                             \
    X(time, _, clock_settime_ns, on_tamper, .optional = true)                                                          \
    X(_signal, _, sigwait, on_tamper, .optional = true)                                                                \
    X(_signal, _, sigwaitinfo, on_tamper, .optional = true)                                                            \
    X(_signal, _, sigtimedwait, on_tamper, .optional = true)                                                           \
    X(time, _, pthread_getcpuclockid, on_own_thread, .denied = "time.pthread_getcpuclockid", .optional = true)         \
    X(sys, _, setswitchinterval, on_host_setting, .denied = "sys.setswitchinterval", .optional = true)                 \
    X(sys, _, set_int_max_str_digits, on_host_setting, .denied = "sys.set_int_max_str_digits", .optional = true)       \
    X(atexit, _, unregister, on_unregister)                                                                            \
    X(_lsprof, Profiler, _ccall_callback, on_enough_arguments, .least = 4, .optional = true)                           \
    X(_lsprof, Profiler, _creturn_callback, on_enough_arguments, .least = 4, .optional = true)                         \
    X(_lsprof, Profiler, _pystart_callback, on_enough_arguments, .least = 2, .optional = true)                         \
    X(_lsprof, Profiler, _pyreturn_callback, on_enough_arguments, .least = 3, .optional = true)                        \
    X(_lsprof, Profiler, _pythrow_callback, on_enough_arguments, .least = 3, .optional = true)                         \
    X(time, _, tzset, on_named_by_environment, .variables = "TZ", .optional = true)                                    \
    X(_curses, _, setupterm, on_named_by_environment, .variables = "TERMINFO TERMINFO_DIRS HOME", .optional = true)    \
    X(_curses, _, initscr, on_screen, .variables = "TERMINFO TERMINFO_DIRS HOME", .optional = true)                    \
    X(readline, _, parse_and_bind, on_bind_line, .optional = true)                                                     \
    X(faulthandler, _, dump_traceback, on_fault_file, .argument = "file", .optional = true)                            \
    X(_tkinter, _, create, on_tamper, .optional = true)                                                                \
    X(_tkinter, TkappType, eval, on_tamper, .optional = true)                                                          \
    X(_tkinter, TkappType, evalfile, on_tamper, .optional = true)                                                      \
    X(_tkinter, TkappType, call, on_tamper, .optional = true)                                                          \
    X(_tkinter, TkappType, record, on_tamper, .optional = true)                                                        \
    X(readline, _, read_history_file, on_file_argument, .operations = OP_READ, .optional = true)                       \
    X(readline, _, read_init_file, on_file_argument, .operations = OP_READ, .optional = true)                          \
    X(readline, _, write_history_file, on_file_argument, .operations = OP_CREATE | OP_MODIFY, .optional = true)        \
    X(readline, _, append_history_file, on_file_argument, .operations = OP_CREATE | OP_MODIFY, .index = 1,             \
      .optional = true)                                                                                                \
    X(_dbm, _, open, on_dbm, .argument = "filename", .optional = true)                                                 \
    X(_gdbm, _, open, on_dbm, .argument = "filename", .optional = true)                                                \
    X(_posixshmem, _, shm_open, on_shared_memory, .operations = OP_READ | OP_CREATE | OP_MODIFY, .argument = "path",   \
      .optional = true)                                                                                                \
    X(_posixshmem, _, shm_unlink, on_shared_memory, .operations = OP_DELETE, .argument = "path", .optional = true)     \
    X(_sqlite3, Connection, execute, on_sql, .optional = true)                                                         \
    X(_sqlite3, Connection, executemany, on_sql, .optional = true)                                                     \
    X(_sqlite3, Connection, executescript, on_sql, .optional = true)                                                   \
    X(_sqlite3, Cursor, execute, on_sql, .optional = true)                                                             \
    X(_sqlite3, Cursor, executemany, on_sql, .optional = true)                                                         \
    X(_sqlite3, Cursor, executescript, on_sql, .optional = true)                                                       \
    X(_sqlite3, Connection, set_authorizer, on_authoriser, .optional = true)                                           \
    X(_sqlite3, Connection, enable_load_extension, on_tamper, .optional = true)                                        \
    X(_sqlite3, Connection, load_extension, on_tamper, .optional = true)                                               \
    X(_cffi_backend, _, load_library, on_foreign_library, .optional = true, .scope = SCOPE_ALWAYS)                     \
    X(_cffi_backend, FFI, dlopen, on_foreign_library, .optional = true, .scope = SCOPE_ALWAYS)                         \
    X(_cffi_backend, FFI, cast, on_foreign, .optional = true)                                                          \
    X(_cffi_backend, FFI, memmove, on_foreign, .optional = true)                                                       \
    X(_cffi_backend, _, cast, on_foreign, .optional = true)                                                            \
    X(_cffi_backend, _, memmove, on_foreign, .optional = true)                                                         \
    X(_ctypes, _, dlopen, on_foreign_library, .optional = true, .scope = SCOPE_ALWAYS)                                 \
    X(_ctypes, _, dlsym, on_foreign, .optional = true)                                                                 \
    X(_ctypes, _, call_function, on_foreign, .optional = true)                                                         \
    X(_ctypes, _, call_cdeclfunction, on_foreign, .optional = true)                                                    \
    X(_ctypes, _, PyObj_FromPtr, on_foreign, .optional = true)                                                         \
    X(_ctypes, _, addressof, on_foreign, .optional = true)

/* A C function does not know through which entry it was called. So every row has separate trampolines, one for each
 * calling convention that an interpreter may use. */
#define ROW_ID(module, owner, name) row_##module##_##owner##_##name
#define NAME_ID(module, owner, name, ...) ROW_ID(module, owner, name),
enum { ROWS(NAME_ID) ROW_COUNT };

#define IDLE LIKELY(live_states == 0 && row->scope < SCOPE_ALWAYS)
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
    static PyObject *id##_6(PyObject *self, PyTypeObject *type, PyObject *const *args, size_t nargs,                   \
                            PyObject *kwnames)                                                                         \
    {                                                                                                                  \
        Row *row = &rows[id];                                                                                          \
        return IDLE ? ORIGINAL(T6)(self, type, args, nargs, kwnames)                                                   \
                    : row_call(row, self, type, args, (Py_ssize_t)nargs, kwnames);                                     \
    }

#define MAKE_TRAMPOLINES(module, owner, name, ...) TRAMPOLINES(row_##module##_##owner##_##name)
ROWS(MAKE_TRAMPOLINES)

#define F(id, n) (PyCFunction)(void (*)(void)) id##_##n
#define LIST(id) {F(id, 0), F(id, 1), F(id, 2), F(id, 3), F(id, 4), F(id, 5), F(id, 6)}
#define MAKE_ROW(in_module, in_owner, of_name, by, ...)                                                                \
    {.module = #in_module,                                                                                             \
     .owner = #in_owner[0] == '_' && #in_owner[1] == '\0' ? "" : #in_owner,                                            \
     .name = #of_name,                                                                                                 \
     .handler = by,                                                                                                    \
     .trampolines = LIST(row_##in_module##_##in_owner##_##of_name),                                                    \
     __VA_ARGS__},

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
    late_modules_tables(rows, ROW_COUNT, late, sizeof late / sizeof *late);
}
