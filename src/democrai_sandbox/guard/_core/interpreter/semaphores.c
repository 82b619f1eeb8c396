/* Semaphores of multiprocessing, which thread pools and queues use too.
 *
 * SemLock(kind, value, maxvalue, name, unlink): with `unlink`, the name of the semaphore is removed at once. The C
 * library still creates it as a file in /dev/shm, which all processes of the user share and a confined worker cannot
 * reach. Guarded code gets a semaphore in anonymous shared memory instead, which works the same for threads and
 * forked children.
 *
 * A semaphore with a name is visible to all processes and outlives this one: it needs `allow_subprocess`. */
#include "interpreter/interpreter.h"

#include <search.h>
#include <semaphore.h>
#include <string.h>
#include <structmember.h>
#include <sys/mman.h>

static newfunc semaphore_original = NULL;
static destructor dealloc_original = NULL;
static void *anonymous = NULL; /* tsearch: the semaphores made here */

static int by_address(const void *one, const void *other)
{
    return (one > other) - (one < other);
}

static void semaphore_dealloc(PyObject *self);

/* Where an object keeps a value; SemLock tells by the name of the attribute. NULL when it does not. A subclass may have
 * a slot of the same name, so its members are not looked at. */
static void *member_of(PyObject *self, const char *name)
{
    PyTypeObject *type = Py_TYPE(self);
    while (type != NULL && type->tp_dealloc != semaphore_dealloc) {
        type = type->tp_base;
    }
    for (PyMemberDef *member = type ? type->tp_members : NULL; member != NULL && member->name != NULL; member++) {
        if (strcmp(member->name, name) == 0) {
            return (char *)self + member->offset;
        }
    }
    return NULL;
}

static void semaphore_free(sem_t *semaphore)
{
    tdelete(semaphore, &anonymous, by_address);
    sem_destroy(semaphore);
    munmap(semaphore, sizeof *semaphore);
}

/* A semaphore in separate memory, like one of sem_open(). NULL with an exception. */
static sem_t *semaphore_make(unsigned value)
{
    sem_t *semaphore = mmap(NULL, sizeof *semaphore, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (semaphore == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        return NULL;
    }
    if (sem_init(semaphore, 1, value) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        munmap(semaphore, sizeof *semaphore);
        return NULL;
    }
    if (tsearch(semaphore, &anonymous, by_address) == NULL) {
        PyErr_NoMemory();
        munmap(semaphore, sizeof *semaphore);
        return NULL;
    }
    return semaphore;
}

static PyObject *anonymous_new(PyTypeObject *type, int kind, int value, int most)
{
    if (kind != 0 && kind != 1) {
        PyErr_SetString(PyExc_ValueError, "unrecognized kind");
        return NULL;
    }
    PyObject *self = type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    sem_t **handle = member_of(self, "handle");
    int *kinds = member_of(self, "kind"), *mosts = member_of(self, "maxvalue");
    if (handle == NULL || kinds == NULL || mosts == NULL) {
        PyErr_SetString(PyExc_SystemError, "SemLock has other members than expected");
    }
    else if ((*handle = semaphore_make((unsigned)value)) != NULL) {
        *kinds = kind;
        *mosts = most;
        return self;
    }
    Py_DECREF(self);
    return NULL;
}

static PyObject *semaphore_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind", "value", "maxvalue", "name", "unlink", NULL};
    State *state = state_guarding();
    int kind, value, most;
    PyObject *name, *unlink;
    if (state == NULL) {
        return semaphore_original(type, args, kwargs);
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiiUO:SemLock", names, &kind, &value, &most, &name, &unlink)) {
        return NULL;
    }
    if (unlink == Py_True) {
        return anonymous_new(type, kind, value, most);
    }
    return state->allow_subprocess ? semaphore_original(type, args, kwargs)
                                   : deny_text(state, DENY_SUBPROCESS, "_multiprocessing.SemLock");
}

static void semaphore_dealloc(PyObject *self)
{
    sem_t **handle = member_of(self, "handle");
    if (handle != NULL && *handle != NULL && tfind(*handle, &anonymous, by_address) != NULL) {
        semaphore_free(*handle);
        *handle = SEM_FAILED; /* nothing is left to be closed */
    }
    dealloc_original(self);
}

int semaphores_patch(PyObject *module)
{
    int result =
        patch_type(module, "SemLock", NULL, offsetof(PyTypeObject, tp_new), (void *)semaphore_new, &semaphore_original);
    return result != 1 ? result
                       : patch_type(module, "SemLock", NULL, offsetof(PyTypeObject, tp_dealloc),
                                    (void *)semaphore_dealloc, &dealloc_original);
}
