/* Makes an os.stat_result from a struct stat.
 *
 * The interpreter would need one more call with the handle. When the package is imported, a result made here is
 * compared with one of the interpreter. */
#include "io/io.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

enum { NANOSECONDS = 1000000000, FIELDS = 19, SEEN = 10 };
/* Places in os.stat_result; the first ten are those of the tuple. */
enum { MODE, INODE, DEVICE, LINKS, USER, GROUP, SIZE, WHOLE, FLOAT = WHOLE + 3, PRECISE = FLOAT + 3, BLOCK_SIZE = 16 };

static PyTypeObject *result_type = NULL;
static bool fits = false;
static bool fused = false; /* whether the interpreter was compiled to multiply and add with one rounding */

static double seconds_of(struct timespec time)
{
    volatile double fraction = 1e-9 * (double)time.tv_nsec;
    return fused ? fma(1e-9, (double)time.tv_nsec, (double)time.tv_sec) : (double)time.tv_sec + fraction;
}

/* The id that stands for none is shown as -1. */
static PyObject *owner_object(unsigned id)
{
    return id == UINT32_MAX ? PyLong_FromLong(-1) : PyLong_FromUnsignedLong(id);
}

static void put_time(PyObject *result, int which, struct timespec time)
{
    PyStructSequence_SET_ITEM(result, WHOLE + which, PyLong_FromLongLong(time.tv_sec));
    PyStructSequence_SET_ITEM(result, FLOAT + which, PyFloat_FromDouble(seconds_of(time)));
    PyStructSequence_SET_ITEM(result, PRECISE + which,
                              PyLong_FromLongLong((long long)time.tv_sec * NANOSECONDS + time.tv_nsec));
}

static PyObject *make(const struct stat *info)
{
    PyObject *result = PyStructSequence_New(result_type);
    if (result == NULL) {
        return NULL;
    }
    PyStructSequence_SET_ITEM(result, MODE, PyLong_FromLong((long)info->st_mode));
    PyStructSequence_SET_ITEM(result, INODE, PyLong_FromUnsignedLongLong(info->st_ino));
    PyStructSequence_SET_ITEM(result, DEVICE, PyLong_FromUnsignedLongLong(info->st_dev));
    PyStructSequence_SET_ITEM(result, LINKS, PyLong_FromUnsignedLongLong(info->st_nlink));
    PyStructSequence_SET_ITEM(result, USER, owner_object(info->st_uid));
    PyStructSequence_SET_ITEM(result, GROUP, owner_object(info->st_gid));
    PyStructSequence_SET_ITEM(result, SIZE, PyLong_FromLongLong(info->st_size));
    put_time(result, 0, info->st_atim);
    put_time(result, 1, info->st_mtim);
    put_time(result, 2, info->st_ctim);
    PyStructSequence_SET_ITEM(result, BLOCK_SIZE, PyLong_FromLong(info->st_blksize));
    PyStructSequence_SET_ITEM(result, BLOCK_SIZE + 1, PyLong_FromLongLong(info->st_blocks));
    PyStructSequence_SET_ITEM(result, BLOCK_SIZE + 2, PyLong_FromUnsignedLongLong(info->st_rdev));
    if (PyErr_Occurred()) {
        Py_CLEAR(result);
    }
    return result;
}

/* NULL without an exception where the answer has to be asked of the interpreter: times before and after what fits into
 * 64 bits of nanoseconds, and interpreters with other answers. */
PyObject *stat_object(const struct stat *info)
{
    static const int64_t farthest = 9000000000;
    const struct timespec *times[] = {&info->st_atim, &info->st_mtim, &info->st_ctim};
    for (int i = 0; i < 3; i++) {
        if (times[i]->tv_sec > farthest || times[i]->tv_sec < -farthest) {
            return NULL;
        }
    }
    return fits ? make(info) : NULL;
}

static bool equal(PyObject *one, PyObject *other)
{
    for (int i = 0; i < FIELDS; i++) {
        PyObject *left = PyStructSequence_GET_ITEM(one, i), *right = PyStructSequence_GET_ITEM(other, i);
        if (Py_TYPE(left) != Py_TYPE(right) || PyObject_RichCompareBool(left, right, Py_EQ) != 1) {
            return false;
        }
    }
    return true;
}

/* Whether an answer about an open folder equals that of the interpreter. The folder may change at the same time. */
static bool answers_alike(PyObject *posix, int fd)
{
    struct stat info;
    bool alike = false;
    for (int attempt = 0; attempt < 3 && !alike; attempt++) {
        PyObject *ours = fstat(fd, &info) == 0 ? make(&info) : NULL;
        PyObject *theirs = ours ? PyObject_CallMethod(posix, "fstat", "i", fd) : NULL;
        alike = theirs != NULL && Py_IS_TYPE(theirs, result_type) && equal(ours, theirs);
        Py_XDECREF(theirs);
        Py_XDECREF(ours);
        PyErr_Clear();
    }
    return alike;
}

static bool all_alike(PyObject *posix, bool with_one_rounding)
{
    static const char *const folders[] = {"/", "/proc/self", "/usr", "/usr/lib", "/etc", "/dev", "/tmp", "/var"};
    int found = 0;
    fused = with_one_rounding;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        int fd = open(folders[i], O_PATH | O_DIRECTORY | O_CLOEXEC);
        bool alike = fd < 0 || answers_alike(posix, fd);
        found += fd >= 0;
        if (fd >= 0) {
            close(fd);
        }
        if (!alike) {
            return false;
        }
    }
    return found > 0;
}

static Py_ssize_t size_of(const char *name)
{
    PyObject *number = PyObject_GetAttrString((PyObject *)result_type, name);
    Py_ssize_t size = number ? PyLong_AsSsize_t(number) : -1;
    Py_XDECREF(number);
    PyErr_Clear();
    return size;
}

int stat_results_ready(void)
{
    PyObject *posix = PyImport_ImportModule("posix");
    result_type = posix ? (PyTypeObject *)PyObject_GetAttrString(posix, "stat_result") : NULL; /* kept for good */
    if (result_type != NULL && size_of("n_fields") == FIELDS && size_of("n_sequence_fields") == SEEN) {
        fits = all_alike(posix, false) || all_alike(posix, true);
    }
    Py_XDECREF(posix);
    return result_type ? 0 : -1;
}
