/* Sets context variables safely during a garbage collection.
 *
 * CPython 3.11 can collect garbage during any allocation. While it copies a context or sets a variable, it uses the
 * variables of the context without owning a reference. A finalizer that enters a guard or sets a variable would free
 * them. Therefore no collection starts while a variable is set, and variables that are replaced during a collection
 * are kept until it ends. Later versions collect between instructions only. */
#define Py_BUILD_CORE 1
#include "core/core.h"

#if PY_VERSION_HEX < 0x030C0000

#include <internal/pycore_interp.h>

static PyObject *kept = NULL; /* list of contexts, each with the variables that were replaced */

static inline struct _gc_runtime_state *collector(void)
{
    return &PyInterpreterState_Get()->gc;
}

/* Free the kept variables, unless a collection runs. */
void collection_release(void)
{
    if (UNLIKELY(kept != NULL) && !collector()->collecting) {
        Py_CLEAR(kept);
    }
}

static int keep_variables(void)
{
    if (kept == NULL) {
        kept = PyList_New(0);
        if (kept == NULL) {
            return -1;
        }
        PyObject_GC_UnTrack(kept); /* not to be found through gc */
    }
    PyObject *copy = PyContext_CopyCurrent();
    int result = copy ? PyList_Append(kept, copy) : -1;
    Py_XDECREF(copy);
    return result;
}

/* Prevent collections until collection_resume(), which takes the result. Return -1 with an exception if it fails. */
int collection_pause(void)
{
    collection_release();
    if (UNLIKELY(collector()->collecting) && keep_variables() < 0) {
        return -1;
    }
    return PyGC_Disable();
}

/* Inside a collection, drop cached values: the interrupted code may replace the variables that own them. */
void collection_resume(int paused)
{
    if (UNLIKELY(collector()->collecting)) {
        PyThreadState_Get()->context_ver++;
    }
    if (paused > 0) {
        PyGC_Enable();
    }
}

/* Check that the layout of the collector's fields is as compiled. */
int collection_ready(void)
{
    int was = PyGC_Disable();
    bool fits = collector()->enabled == 0;
    PyGC_Enable();
    fits = fits && collector()->enabled == 1 && collector()->collecting == 0;
    if (!was) {
        PyGC_Disable();
    }
    if (!fits) {
        PyErr_SetString(PyExc_ImportError, "the collector cannot be watched: the guard does not fit this interpreter");
    }
    return fits ? 0 : -1;
}

#else

void collection_release(void)
{
}

int collection_pause(void)
{
    return 0;
}

void collection_resume(int paused)
{
}

int collection_ready(void)
{
    return 0;
}

#endif

/* The fields of a token of a variable, as contextvars keeps them. */
typedef struct {
    PyObject_HEAD PyObject *context, *variable, *value; /* what the variable had before */
    int used;
} Token;

PyObject *variable_set(PyObject *variable, PyObject *value)
{
    int paused = collection_pause();
    PyObject *token = paused < 0 ? NULL : PyContextVar_Set(variable, value);
    collection_resume(paused);
    return token;
}

/* The current context, created if the thread has none. Borrowed. */
static PyObject *current_context(void)
{
    PyThreadState *thread = PyThreadState_Get();
    if (UNLIKELY(thread->context == NULL)) {
        Py_XDECREF(PyContext_CopyCurrent());
    }
    return thread->context;
}

/* Sets a variable without making a token. When memory is exhausted, PyContextVar_Set() sets the variable and reports an
 * error, or ends the process; resetting to the value of a token either succeeds or changes nothing. */
int variable_put(PyObject *variable, PyObject *value)
{
    int paused = collection_pause(), result = -1;
    PyObject *context = paused < 0 ? NULL : current_context();
    if (context != NULL) {
        Token token = {.context = context, .variable = variable, .value = value};
        PyObject_Init((PyObject *)&token, &PyContextToken_Type);
        result = PyContextVar_Reset(variable, (PyObject *)&token);
    }
    collection_resume(paused);
    return result;
}

/* Check that the layout of tokens is as compiled. */
int variables_ready(void)
{
    PyObject *variable = PyContextVar_New("democrai_sandbox_check", NULL);
    Token *first = variable ? (Token *)PyContextVar_Set(variable, Py_True) : NULL;
    Token *second = first ? (Token *)PyContextVar_Set(variable, Py_False) : NULL;
    bool fits = second != NULL && PyContextToken_Type.tp_basicsize == sizeof(Token) && first->value == NULL &&
                second->context == PyThreadState_Get()->context && second->variable == variable &&
                second->value == Py_True && !second->used && PyContextVar_Reset(variable, (PyObject *)second) == 0 &&
                second->used == 1 && PyContextVar_Reset(variable, (PyObject *)first) == 0;
    if (!fits && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ImportError, "variables cannot be set: the guard does not fit this interpreter");
    }
    Py_XDECREF(first);
    Py_XDECREF(second);
    Py_XDECREF(variable);
    return fits ? 0 : -1;
}
