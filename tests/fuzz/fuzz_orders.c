/* order.c of the kernel layer: an order for a program, as the spawn server reads it. */
#include "fuzz.h"
#include "spawn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int files[] = {10, 11, 12, 13};
    Order order = {0};
    PyObject *body = PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)size);
    if (order_read(&order, body, files, 4, 9) == NULL) {
        size_t length = strlen(order.program) + strlen(order.cwd);
        for (char **text = order.argv; *text != NULL; text++) {
            length += strlen(*text);
        }
        for (char **text = order.env; *text != NULL; text++) {
            length += strlen(*text);
        }
        REQUIRE(length < size && order.program[0] == '/' && order.cwd[0] == '/' && order.argv[0] != NULL);
    }
    order_release(&order);
    Py_DECREF(body);
    return 0;
}
