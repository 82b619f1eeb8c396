/* Report of the system calls that a process makes inside marked windows, from outside of it.
 *
 * usage: tracer [--contain FOLDER] REPORT COMMAND [ARGUMENT ...]
 *
 * A window begins and ends with sched_get_priority_max(BEGIN + n) and (END + n), which the kernel refuses and nobody
 * else calls. Processes that a traced one starts inside a window are in it too. Each line of the report has fields
 * separated by tabs, with %XX for bytes that are not printable:
 *
 *   call    window  process  class  name  result  object ...
 *   kept    window  process  object                             an O_PATH handle that outlives its window
 *   ended   window  process  exit status, or minus the signal   a process that ended inside a window
 *
 * Objects: P path; D number, "host" if it was open before the first mark, otherwise "own", and its target; A socket
 * address; I process; V number; T text. */
#define _GNU_SOURCE
#include "tracer.h"

#include "calls.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <linux/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#elif defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#else
#error "the tracer knows aarch64 and x86_64"
#endif

enum { BEGIN = 0x51000000, END = 0x52000000, MARKS = 0x1000000, MOST = 4096, OPEN = 512, HANDLES = 64, OBJECTS = 6 };

typedef struct {
    int number;
    const char *name, *class, *arguments;
} Row;

#define ROW(name, class, arguments) {SYS_##name, #name, #class, arguments},
static const Row rows[] = {
    AT_CALLS(ROW) DATA_CALLS(ROW) NETWORK_CALLS(ROW) PROCESS_CALLS(ROW) OLD_CALLS(ROW) RENAMEAT_CALL(ROW)
#ifdef SYS_open
    {SYS_open, "open", "open", "w01v1"},
    {SYS_fork, "fork", "fork", ""},
    {SYS_vfork, "vfork", "fork", ""},
#endif
    {437, "openat2", "open", "q01"},
    {439, "faccessat2", "stat", "a013"},
    {452, "fchmodat2", "change", "a013"},
    {428, "open_tree", "open", "a012"},
    {429, "move_mount", "change", "n01n23"},
    {430, "fsopen", "process", "t0"},
    {442, "mount_setattr", "change", "a012"},
    {463, "setxattrat", "change", "a012"},
    {464, "getxattrat", "stat", "a012"},
    {465, "listxattrat", "stat", "a012"},
    {466, "removexattrat", "change", "a012"},
    {468, "file_getattr", "stat", "a014"},
    {469, "file_setattr", "change", "a014"},
    {SYS_clone, "clone", "fork", "c0"},
    {435, "clone3", "fork", "C0"},
};
enum { ROWS = sizeof rows / sizeof *rows };

typedef struct {
    int fd;
    char *text;
} Opened;

typedef struct {
    pid_t id;
    long window; /* -1: outside */
    bool counted;
    Opened before[OPEN];
    int befores;
    int handles[HANDLES];
    int handles_used;
} Process;

typedef struct {
    pid_t id;
    Process *process;
    const Row *row; /* of the call under way */
    bool handle;    /* it opens an O_PATH handle */
    char objects[OBJECTS][TEXT];
    int used;
} Thread;

static Process *processes[MOST];
static Thread *threads[MOST];
static FILE *report;

/* ---- processes and threads -------------------------------------------------------------------------- */

static Process *find_process(pid_t id)
{
    for (int i = 0; i < MOST; i++) {
        if (processes[i] != NULL && processes[i]->id == id) {
            return processes[i];
        }
    }
    return NULL;
}

static void *added(void **table, void *entry)
{
    for (int i = 0; i < MOST; i++) {
        if (table[i] == NULL) {
            return table[i] = entry;
        }
    }
    fprintf(stderr, "tracer: more than %d processes or threads\n", MOST);
    exit(2);
}

static pid_t status_field(pid_t id, const char *field)
{
    char path[64], line[256];
    pid_t value = 0;
    snprintf(path, sizeof path, "/proc/%d/status", id);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, field, strlen(field)) == 0) {
            value = (pid_t)strtol(line + strlen(field), NULL, 10);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return value;
}

static void remember_open(Process *process, int fd, const char *text)
{
    if (process->befores < OPEN) {
        process->before[process->befores++] = (Opened){fd, strdup(text)};
    }
}

static Process *process_of(pid_t id)
{
    Process *process = find_process(id);
    if (process != NULL) {
        return process;
    }
    process = calloc(1, sizeof *process);
    process->id = id;
    process->window = -1;
    Process *parent = find_process(status_field(id, "PPid:"));
    if (parent != NULL && parent->window >= 0) {
        process->window = parent->window;
        process->counted = true;
        for (int i = 0; i < parent->befores; i++) {
            remember_open(process, parent->before[i].fd, parent->before[i].text);
        }
    }
    return added((void **)processes, process);
}

static Thread *thread_of(pid_t id)
{
    static int latest = 0;
    if (threads[latest] != NULL && threads[latest]->id == id) {
        return threads[latest];
    }
    for (int i = 0; i < MOST; i++) {
        if (threads[i] != NULL && threads[i]->id == id) {
            latest = i;
            return threads[i];
        }
    }
    pid_t group = status_field(id, "Tgid:");
    Thread *thread = calloc(1, sizeof *thread);
    thread->id = id;
    thread->process = process_of(group ? group : id);
    return added((void **)threads, thread);
}

static void forget_process(pid_t id)
{
    for (int i = 0; i < MOST; i++) {
        if (processes[i] != NULL && processes[i]->id == id) {
            for (int k = 0; k < processes[i]->befores; k++) {
                free(processes[i]->before[k].text);
            }
            free(processes[i]);
            processes[i] = NULL;
        }
    }
}

static void forget(pid_t id, int status)
{
    Process *process = find_process(id);
    if (process != NULL && process->window >= 0) {
        fprintf(report, "ended\t%ld\t%d\t%d\n", process->window, id,
                WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    for (int i = 0; i < MOST; i++) {
        if (threads[i] != NULL && threads[i]->id == id) {
            free(threads[i]);
            threads[i] = NULL;
        }
    }
    forget_process(id);
}

/* ---- writing ------------------------------------------------------------------------------------------ */

static void write_escaped(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        if (*p <= ' ' || *p == '%' || *p > '~') {
            fprintf(report, "%%%02X", *p);
        }
        else {
            fputc(*p, report);
        }
    }
}

static void write_call(const Thread *thread, int64_t result)
{
    const Row *row = thread->row;
    fprintf(report, "call\t%ld\t%d\t%s\t%s\t%lld", thread->process->window, thread->process->id, row->class, row->name,
            (long long)result);
    for (int i = 0; i < thread->used; i++) {
        fputc('\t', report);
        write_escaped(thread->objects[i]);
    }
    fputc('\n', report);
}

static char *new_object(Thread *thread)
{
    static char spare[TEXT];
    return thread->used < OBJECTS ? thread->objects[thread->used++] : spare;
}

/* ---- objects ------------------------------------------------------------------------------------------ */

static bool was_open_before(const Process *process, int fd, const char *text)
{
    for (int i = 0; i < process->befores; i++) {
        if (process->before[i].fd == fd && strcmp(process->before[i].text, text) == 0) {
            return true;
        }
    }
    return false;
}

static void add_descriptor(Thread *thread, int fd)
{
    char text[TEXT];
    descriptor_text(thread->id, fd, text);
    const char *owner = was_open_before(thread->process, fd, text) ? "host" : "own";
    name_own_entry(thread->process->id, text);
    snprintf(new_object(thread), TEXT, "D%d,%s,%.*s", fd, owner, PATH_MAX, text);
}

static void add_path(Thread *thread, int folder, uint64_t address, bool follow, bool may_be_empty)
{
    char text[TEXT], resolved[TEXT];
    if ((address == 0 || !read_text(thread->id, address, text, PATH_MAX) || text[0] == '\0')) {
        if (may_be_empty && folder >= 0) {
            add_descriptor(thread, folder);
        }
        else {
            strcpy(new_object(thread), "P");
        }
        return;
    }
    resolve(thread->process->id, thread->id, folder, text, follow, resolved);
    snprintf(new_object(thread), TEXT, "P%.*s", PATH_MAX, resolved);
}

static void add_address(Thread *thread, uint64_t address, uint64_t length)
{
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
        struct sockaddr_un local;
    } place = {{0}};
    char text[INET6_ADDRSTRLEN] = "", resolved[TEXT], *out = new_object(thread);
    size_t size = length < sizeof place ? (size_t)length : sizeof place;
    if (address == 0 || size < sizeof(sa_family_t) || !read_memory(thread->id, address, &place, size)) {
        strcpy(out, "A");
    }
    else if (place.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &place.four.sin_addr, text, sizeof text);
        snprintf(out, TEXT, "Ainet:%s:%d", text, ntohs(place.four.sin_port));
    }
    else if (place.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &place.six.sin6_addr, text, sizeof text);
        snprintf(out, TEXT, "Ainet6:[%s]:%d", text, ntohs(place.six.sin6_port));
    }
    else if (place.any.sa_family == AF_UNIX && place.local.sun_path[0] != '\0' && size > sizeof(sa_family_t)) {
        char path[sizeof place.local.sun_path + 1] = "";
        memcpy(path, place.local.sun_path, size - sizeof(sa_family_t));
        resolve(thread->process->id, thread->id, AT_FDCWD, path, true, resolved);
        snprintf(out, TEXT, "Aunix:%.*s", PATH_MAX, resolved);
    }
    else if (place.any.sa_family == AF_UNIX) {
        snprintf(out, TEXT, "Aabstract:%.*s", (int)(size > 3 ? size - 3 : 0), place.local.sun_path + 1);
    }
    else {
        snprintf(out, TEXT, "Afamily:%d", place.any.sa_family);
    }
}

static void add_message(Thread *thread, uint64_t address)
{
    struct msghdr message;
    if (!read_memory(thread->id, address, &message, sizeof message)) {
        return;
    }
    add_address(thread, (uint64_t)(uintptr_t)message.msg_name, message.msg_namelen);
}

static bool follows(uint64_t flags)
{
    return !(flags & AT_SYMLINK_NOFOLLOW);
}

static void add_opened(Thread *thread, int folder, uint64_t path, uint64_t flags)
{
    bool exclusive = (flags & O_CREAT) && (flags & O_EXCL);
    thread->handle = (flags & O_PATH) != 0;
    add_path(thread, folder, path, !(flags & O_NOFOLLOW) && !exclusive, false);
}

static void add_opened2(Thread *thread, const uint64_t *arguments)
{
    struct open_how how = {0};
    read_memory(thread->id, arguments[2], &how, sizeof how);
    add_opened(thread, (int)arguments[0], arguments[1], how.flags);
    snprintf(new_object(thread), TEXT, "V%llx", (unsigned long long)how.flags);
    snprintf(new_object(thread), TEXT, "V%llx", (unsigned long long)how.resolve);
}

static bool starts_thread(const Thread *thread, uint64_t argument, bool is_structure)
{
    struct clone_args wanted = {.flags = argument};
    if (is_structure && !read_memory(thread->id, argument, &wanted.flags, sizeof wanted.flags)) {
        return false;
    }
    return (wanted.flags & CLONE_THREAD) != 0;
}

/* Adds the objects of one call; false when it is of no interest after all. */
static bool add_objects(Thread *thread, const uint64_t *arguments)
{
    if (thread->row->number == SYS_mmap && (arguments[3] & MAP_ANONYMOUS)) {
        return false;
    }
    for (const char *at = thread->row->arguments; *at != '\0';) {
        char kind = *at++;
        uint64_t given[3] = {0};
        for (int i = 0; i < 3 && *at >= '0' && *at <= '9'; i++) {
            given[i] = arguments[*at++ - '0'];
        }
        switch (kind) {
        case 'o': add_opened(thread, (int)given[0], given[1], given[2]); break;
        case 'w': add_opened(thread, AT_FDCWD, given[0], given[1]); break;
        case 'q': add_opened2(thread, arguments); break;
        case 'a': add_path(thread, (int)given[0], given[1], follows(given[2]), true); break;
        case 'h': add_path(thread, (int)given[0], given[1], (given[2] & AT_SYMLINK_FOLLOW) != 0, true); break;
        case 'd': add_path(thread, (int)given[0], given[1], true, true); break;
        case 'n': add_path(thread, (int)given[0], given[1], false, true); break;
        case 'p': add_path(thread, AT_FDCWD, given[0], true, false); break;
        case 'l': add_path(thread, AT_FDCWD, given[0], false, false); break;
        case 'f': add_descriptor(thread, (int)given[0]); break;
        case 's': add_address(thread, given[0], given[1]); break;
        case 'm': add_message(thread, given[0]); break;
        case 'i': snprintf(new_object(thread), TEXT, "I%d", (int)given[0]); break;
        case 'v': snprintf(new_object(thread), TEXT, "V%llx", (unsigned long long)given[0]); break;
        case 'c':
        case 'C':
            if (starts_thread(thread, given[0], kind == 'C')) {
                return false;
            }
            break;
        default: {
            char text[TEXT] = "";
            read_text(thread->id, given[0], text, PATH_MAX);
            snprintf(new_object(thread), TEXT, "T%.*s", PATH_MAX, text);
        }
        }
    }
    return true;
}

/* ---- windows ------------------------------------------------------------------------------------------- */

static void count_open(Process *process)
{
    char path[64], text[TEXT];
    snprintf(path, sizeof path, "/proc/%d/fd", process->id);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] != '.') {
            int fd = (int)strtol(entry->d_name, NULL, 10);
            descriptor_text(process->id, fd, text);
            remember_open(process, fd, text);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    process->counted = true;
}

static void report_kept(Process *process)
{
    char text[TEXT];
    for (int i = 0; i < process->handles_used; i++) {
        descriptor_text(process->id, process->handles[i], text);
        if (text[0] != '\0') {
            fprintf(report, "kept\t%ld\t%d\tP", process->window, process->id);
            write_escaped(text);
            fputc('\n', report);
        }
    }
    process->handles_used = 0;
}

static bool mark(Thread *thread, uint64_t argument)
{
    Process *process = thread->process;
    uint32_t number = (uint32_t)argument;
    bool ours = number >= BEGIN && number < END + MARKS;
    if (ours && !process->counted) {
        count_open(process);
    }
    if (number >= BEGIN && number < BEGIN + MARKS) {
        process->window = (long)(number - BEGIN);
        process->handles_used = 0;
        return true;
    }
    if (number >= END && number < END + MARKS) {
        report_kept(process);
        process->window = -1;
        return true;
    }
    return false;
}

/* ---- stops ----------------------------------------------------------------------------------------------- */

static const Row *row_of(int number)
{
    static const Row *by_number[1024];
    static bool ready = false;
    if (!ready) {
        for (int i = 0; i < ROWS; i++) {
            by_number[rows[i].number] = &rows[i];
        }
        ready = true;
    }
    return number >= 0 && number < 1024 ? by_number[number] : NULL;
}

static void on_entry(Thread *thread)
{
    struct ptrace_syscall_info info;
    int go_on = PTRACE_CONT;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread->id, sizeof info, &info) > 0 && info.op == PTRACE_SYSCALL_INFO_SECCOMP) {
        uint64_t arguments[6];
        for (int i = 0; i < 6; i++) {
            arguments[i] = info.seccomp.args[i];
        }
        int number = (int)info.seccomp.nr;
        if (number == SYS_sched_get_priority_max) {
            mark(thread, arguments[0]);
        }
        else if (thread->process->window >= 0) {
            thread->row = row_of(number);
            thread->used = 0;
            thread->handle = false;
            if (thread->row == NULL || !add_objects(thread, arguments)) {
                thread->row = NULL;
            }
            else if (number == SYS_exit_group) {
                write_call(thread, 0);
            }
            else {
                go_on = PTRACE_SYSCALL;
            }
        }
    }
    ptrace(go_on, thread->id, 0, 0);
}

static void on_exit_of_call(Thread *thread)
{
    struct ptrace_syscall_info info;
    Process *process = thread->process;
    if (thread->row != NULL && ptrace(PTRACE_GET_SYSCALL_INFO, thread->id, sizeof info, &info) > 0 &&
        info.op == PTRACE_SYSCALL_INFO_EXIT) {
        write_call(thread, info.exit.rval);
        if (thread->handle && info.exit.rval >= 0 && process->handles_used < HANDLES) {
            process->handles[process->handles_used++] = (int)info.exit.rval;
        }
        thread->row = NULL;
    }
    ptrace(PTRACE_CONT, thread->id, 0, 0);
}

static void on_stop(pid_t id, int status)
{
    Thread *thread = thread_of(id);
    int signal = WSTOPSIG(status), event = status >> 16;
    if (event == PTRACE_EVENT_SECCOMP) {
        on_entry(thread);
    }
    else if (signal == (SIGTRAP | 0x80)) {
        on_exit_of_call(thread);
    }
    else if (event == PTRACE_EVENT_STOP) {
        bool group = signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
        ptrace(group ? PTRACE_LISTEN : PTRACE_CONT, id, 0, 0);
    }
    else {
        /* a call under way goes on: its exit is still to be seen */
        int go_on = thread->row != NULL && event != 0 ? PTRACE_SYSCALL : PTRACE_CONT;
        ptrace(go_on, id, 0, event != 0 ? 0 : signal);
    }
}

static int watch(pid_t first)
{
    int result = 2;
    for (;;) {
        int status;
        pid_t id = waitpid(-1, &status, __WALL);
        if (id < 0 && errno == EINTR) {
            continue;
        }
        if (id < 0) {
            return result;
        }
        if (WIFSTOPPED(status)) {
            on_stop(id, status);
            continue;
        }
        forget(id, status);
        if (id == first) {
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
    }
}

/* ---- start ----------------------------------------------------------------------------------------------- */

static void install_filter(void)
{
    static struct sock_filter program[2 * ROWS + 16];
    unsigned short used = 0;
    program[used++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    program[used++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    program[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    program[used++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = -1; i < ROWS; i++) {
        unsigned number = (unsigned)(i < 0 ? SYS_sched_get_priority_max : rows[i].number);
        program[used++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
        program[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    program[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog whole = {.len = used, .filter = program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole) < 0) {
        perror("tracer: seccomp");
        _exit(2);
    }
}

static void run_traced(int go, char **command, bool contained)
{
    char byte;
    if (read(go, &byte, 1) != 1) {
        _exit(2);
    }
    if (contained) {
        setsid();
        drop_capabilities();
    }
    install_filter();
    execvp(command[0], command);
    perror(command[0]);
    _exit(2);
}

static pid_t start(char **command, bool contained)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) {
        perror("tracer: pipe");
        exit(2);
    }
    pid_t child = fork();
    if (child == 0) {
        run_traced(ends[0], command, contained);
    }
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                   PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (child < 0 || ptrace(PTRACE_SEIZE, child, 0, options) < 0 || write(ends[1], "", 1) != 1) {
        perror("tracer: attach");
        exit(2);
    }
    close(ends[0]);
    close(ends[1]);
    return child;
}

int main(int count, char **arguments)
{
    const char *folder = NULL;
    if (count > 2 && strcmp(arguments[1], "--contain") == 0) {
        folder = arguments[2];
        arguments += 2;
        count -= 2;
    }
    if (count < 3) {
        fprintf(stderr, "usage: tracer [--contain FOLDER] REPORT COMMAND [ARGUMENT ...]\n");
        return 2;
    }
    report = fopen(arguments[1], "we");
    if (report == NULL) {
        perror(arguments[1]);
        return 2;
    }
    if (folder != NULL) {
        contain(folder);
    }
    int result = watch(start(arguments + 2, folder != NULL));
    return fclose(report) == 0 ? result : 2;
}
