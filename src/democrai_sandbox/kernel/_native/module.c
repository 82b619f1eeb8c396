/* Extension module with system calls that the standard library lacks.
 *
 * Each function first raises the audit event "democrai.kernel", which the guard refuses, so guarded code cannot use
 * them. The spawn server loads the file by its path, without the package. */
#include "native.h"

#include <errno.h>

int native_announce(const char *name)
{
    return PySys_Audit("democrai.kernel", "s", name);
}

PyObject *native_failed(long number)
{
    errno = (int)(number < 0 ? -number : number);
    return PyErr_SetFromErrno(PyExc_OSError);
}

int native_bits(PyObject *value, void *place)
{
    unsigned long long bits = PyLong_AsUnsignedLongLong(value);
    if (bits == (unsigned long long)-1 && PyErr_Occurred()) {
        return 0;
    }
    *(uint64_t *)place = bits;
    return 1;
}

#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"landlock_abi", native_landlock_abi, METH_NOARGS, "Return the kernel's Landlock ABI; 0 without Landlock."},
    {"landlock_errno", native_landlock_errno, METH_NOARGS, "Return the errno of a missing Landlock; 0 if available."},
    {"landlock_create", native_landlock_create, METH_VARARGS,
     "Return the descriptor of a new ruleset that handles these rights."},
    {"landlock_add_path", native_landlock_add_path, METH_VARARGS,
     "Allow rights at and below a path, with exact only without links; return whether it exists."},
    {"landlock_add_port", native_landlock_add_port, METH_VARARGS, "Allow rights for one TCP port."},
    {"landlock_add_own_proc", native_landlock_add_own_proc, METH_VARARGS,
      "Allow rights in the process's folder in /proc; in its network tables only if the whole folder is requested."},
    {"landlock_restrict", WITH_KEYWORDS(native_landlock_restrict), METH_VARARGS | METH_KEYWORDS,
      "Set no_new_privs and restrict the calling thread permanently."},
    {"seccomp_install", native_seccomp_install, METH_VARARGS,
      "Set no_new_privs and install a filter; a result above 0 is the thread that prevented the installation."},
    {"seccomp_mode", native_seccomp_mode, METH_NOARGS,
     "Return the calling thread's seccomp mode: 0, or 2 for filters."},
    {"no_new_privs", native_no_new_privs, METH_NOARGS, "Return whether the calling thread has no_new_privs set."},
    {"set_subreaper", native_set_subreaper, METH_NOARGS, "Become the parent of orphaned descendants."},
    {"set_dumpable", native_set_dumpable, METH_O, "Set whether processes of the same user may inspect this one."},
    {"set_parent_death_signal", native_set_parent_death_signal, METH_O, "Set the signal for the parent's end."},
    {"set_name", native_set_name, METH_O, "Set the name of the calling thread in ps and top: at most 15 bytes."},
    {"drop_capabilities", native_drop_capabilities, METH_O, "Drop all capabilities except those in the mask."},
    {"probe", native_probe, METH_O, "Make one harmless call of a fixed table; return 0 or its errno."},
    {"receive", native_receive, METH_O, "Receive a packet: data, lifeline, descriptors, sender, flags."},
    {"tell", native_tell, METH_VARARGS, "Send a packet, with a descriptor unless that is -1, without blocking."},
    {"hear", native_hear, METH_O, "Return the signal to forward; 0 for none, -1 at the end."},
    {"exit_code", native_exit_code, METH_O, "Return a child's exit code and keep the zombie; None while it runs."},
    {"strangers", native_strangers, METH_VARARGS, "Return the children in the kernel's list that are not known."},
    {"spawn", native_spawn, METH_VARARGS, "Start a confined program; return its pid and pidfd."},
    {"fork_worker", native_fork_worker, METH_NOARGS,
     "Fork a child of the spawn server; return the server's pid there, and 0 here."},
    {"confine_worker", native_confine_worker, METH_VARARGS,
     "Confine this process, a fork, for a request; return the arguments and the environment."},
    {"supervise", native_supervise, METH_VARARGS,
     "Make the supervised calls of a child below its roots; its listener arrives on the socket."},
    {NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "democrai_sandbox.kernel._native",
    .m_doc = "System calls of the kernel layer.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
