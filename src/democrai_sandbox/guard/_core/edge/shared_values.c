/* Copies bytes values through memory that host and worker share.
 *
 * The writer announces the values first and copies them afterwards, piece by piece; a counter in the memory has the
 * bytes that are there. The reader follows it, so that both copies together take little longer than one. The other
 * process may change the memory and the counter at any time: each byte is read once, and bounds never depend on it. */
#include "edge/edge.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { PIECE = 65536, PAUSE_NANOSECONDS = 20000 };

typedef _Atomic uint64_t Counter;

/* Waits until so many bytes have arrived; false, without an error, if they do not within the pauses that are left. */
static bool wait_for(Arrival *arrival, size_t bytes)
{
    const Counter *counter = arrival->counter;
    while (atomic_load_explicit(counter, memory_order_acquire) < bytes) {
        if (arrival->spins > 0) {
            arrival->spins--;
            continue;
        }
        if (!arrival->waits && arrival->pauses-- <= 0) {
            return false;
        }
        const struct timespec pause = {0, PAUSE_NANOSECONDS};
        PyThreadState *thread = PyEval_SaveThread();
        nanosleep(&pause, NULL);
        PyEval_RestoreThread(thread);
    }
    return true;
}

static bool is_counter(const Py_buffer *memory)
{
    return memory->len >= (Py_ssize_t)sizeof(Counter) && (uintptr_t)memory->buf % sizeof(Counter) == 0;
}

/* Takes the counter of values that may still be arriving; -1 with an error for memory that cannot be one. */
int arrival_of(Arrival *arrival, const Py_buffer *counter, bool waits)
{
    if (counter->buf != NULL && !is_counter(counter)) {
        PyErr_SetString(PyExc_ValueError, "not a counter");
        return -1;
    }
    *arrival = (Arrival){.counter = counter->buf, .waits = waits, .spins = ARRIVAL_SPINS, .pauses = ARRIVAL_PAUSES};
    return 0;
}

/* Copies values from an offset of the memory, as they arrive; -1 with a BlockingIOError if they take too long. */
int copy_arriving(Arrival *arrival, char *to, const char *memory, size_t offset, size_t size)
{
    for (size_t done = 0; done < size;) {
        size_t piece = size - done < PIECE ? size - done : PIECE;
        if (!wait_for(arrival, offset + done + piece)) {
            PyErr_SetNone(PyExc_BlockingIOError);
            return -1;
        }
        memcpy(to + done, memory + offset + done, piece);
        done += piece;
    }
    return 0;
}

static void write_value(Counter *counter, char *memory, size_t offset, const char *value, size_t size)
{
    for (size_t done = 0; done < size;) {
        size_t piece = size - done < PIECE ? size - done : PIECE;
        memcpy(memory + offset + done, value + done, piece);
        done += piece;
        atomic_store_explicit(counter, offset + done, memory_order_release);
    }
}

/* write_values(counter, memory, values): the values are a list of bytes that fit into the memory */
PyObject *core_write_values(PyObject *module, PyObject *args)
{
    Py_buffer counter, memory;
    PyObject *values;
    if (!PyArg_ParseTuple(args, "w*w*O!", &counter, &memory, &PyList_Type, &values)) {
        return NULL;
    }
    bool fits = is_counter(&counter);
    size_t used = 0;
    for (Py_ssize_t i = 0; fits && i < PyList_GET_SIZE(values); i++) {
        PyObject *value = PyList_GET_ITEM(values, i);
        size_t size = PyBytes_CheckExact(value) ? (size_t)PyBytes_GET_SIZE(value) : SIZE_MAX;
        fits = size <= (size_t)memory.len - used;
        if (fits) {
            write_value(counter.buf, memory.buf, used, PyBytes_AS_STRING(value), size);
            used += size;
        }
    }
    PyBuffer_Release(&counter);
    PyBuffer_Release(&memory);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "a counter, and values that fit into the memory, are needed");
        return NULL;
    }
    Py_RETURN_NONE;
}
