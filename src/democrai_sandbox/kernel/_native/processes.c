/* Process attributes: dropped privileges, and signals at the end of a process. */
#include "native.h"

#include <errno.h>
#include <linux/capability.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WORDS = 2, WORD_BITS = 32, MOST_CAPABILITIES = 64, LONGEST_NAME = 15 };

int kernel_set_no_new_privs(void)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}

int kernel_parent_death_signal(int number)
{
    return prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) < 0 ? -errno : 0;
}

/* A program started by root regains the bounding set. Without CAP_SETPCAP it cannot be lowered, which is not necessary:
 * such a process gains nothing by execve after no_new_privs is set. */
static int lower_bounding(uint64_t keep, bool able)
{
    for (int number = 0; number < MOST_CAPABILITIES; number++) {
        int held = prctl(PR_CAPBSET_READ, number, 0, 0, 0);
        if (held < 0) {
            return errno == EINVAL ? 0 : -errno; /* beyond the kernel's last capability */
        }
        if (held && able && !(keep >> number & 1) && prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0) {
            return -errno;
        }
    }
    return 0;
}

static int lower_ambient(uint64_t keep)
{
    for (int number = 0; number < MOST_CAPABILITIES; number++) {
        int held = prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, number, 0, 0);
        if (held < 0) {
            return errno == EINVAL ? 0 : -errno;
        }
        if (held && !(keep >> number & 1) && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_LOWER, number, 0, 0) < 0) {
            return -errno;
        }
    }
    return 0;
}

/* Drops all bits except keep from the calling thread's bounding, ambient, permitted, effective and inheritable sets. */
int kernel_keep_capabilities(uint64_t keep)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct sets[WORDS] = {{0}};
    if (syscall(SYS_capget, &header, sets) < 0) {
        return -errno;
    }
    bool able = sets[CAP_TO_INDEX(CAP_SETPCAP)].effective & CAP_TO_MASK(CAP_SETPCAP);
    int failed = lower_bounding(keep, able);
    if (failed == 0) {
        failed = lower_ambient(keep);
    }
    if (failed < 0) {
        return failed;
    }
    for (int word = 0; word < WORDS; word++) {
        uint32_t bits = (uint32_t)(keep >> (word * WORD_BITS));
        sets[word].effective &= bits;
        sets[word].permitted &= bits;
        sets[word].inheritable &= bits;
    }
    return syscall(SYS_capset, &header, sets) < 0 ? -errno : 0;
}

static PyObject *none_or_failed(long result)
{
    if (result < 0) {
        return native_failed(result);
    }
    Py_RETURN_NONE;
}

PyObject *native_no_new_privs(PyObject *module, PyObject *unused)
{
    if (native_announce("no_new_privs") < 0) {
        return NULL;
    }
    int set = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    return set < 0 ? native_failed(errno) : PyBool_FromLong(set);
}

PyObject *native_set_subreaper(PyObject *module, PyObject *unused)
{
    if (native_announce("set_subreaper") < 0) {
        return NULL;
    }
    return none_or_failed(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 ? -errno : 0);
}

PyObject *native_set_dumpable(PyObject *module, PyObject *value)
{
    if (native_announce("set_dumpable") < 0) {
        return NULL;
    }
    int wanted = PyObject_IsTrue(value);
    if (wanted < 0) {
        return NULL;
    }
    return none_or_failed(prctl(PR_SET_DUMPABLE, wanted, 0, 0, 0) < 0 ? -errno : 0);
}

PyObject *native_set_parent_death_signal(PyObject *module, PyObject *value)
{
    uint64_t number;
    if (native_announce("set_parent_death_signal") < 0 || !native_bits(value, &number)) {
        return NULL;
    }
    return none_or_failed(number >= NSIG ? -EINVAL : kernel_parent_death_signal((int)number));
}

PyObject *native_set_name(PyObject *module, PyObject *value)
{
    char name[LONGEST_NAME + 1] = {0};
    if (native_announce("set_name") < 0) {
        return NULL;
    }
    if (!PyBytes_Check(value)) {
        return PyErr_Format(PyExc_TypeError, "expected bytes");
    }
    strncpy(name, PyBytes_AS_STRING(value), LONGEST_NAME);
    return none_or_failed(prctl(PR_SET_NAME, name, 0, 0, 0) < 0 ? -errno : 0);
}

PyObject *native_drop_capabilities(PyObject *module, PyObject *value)
{
    uint64_t keep;
    if (native_announce("drop_capabilities") < 0 || !native_bits(value, &keep)) {
        return NULL;
    }
    return none_or_failed(kernel_keep_capabilities(keep));
}
