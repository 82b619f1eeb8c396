/* New socket objects, created by the subject or from a descriptor that it may use. */
#include "io/io.h"

static initproc socket_original = NULL;

static int socket_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    if (LIKELY(state == NULL)) {
        return socket_original(self, args, kwargs);
    }
    PyObject *number = PyTuple_GET_SIZE(args) > 3 ? PyTuple_GET_ITEM(args, 3) : NULL;
    if (number == NULL && kwargs != NULL) {
        number = PyDict_GetItemString(kwargs, "fileno");
    }
    bool given = number != NULL && number != Py_None;
    if (socket_family(self) != 0) {
        refuse_target("a socket object is made once"); /* its number must not change while it is being used */
        return -1;
    }
    if (!given && check_new_socket(state, args, kwargs) < 0) {
        return -1;
    }
    if (given && (!PyLong_CheckExact(number) || descriptor_check(state, number, WANT_MANAGE) < 0)) {
        if (!PyErr_Occurred()) {
            deny_text(state, DENY_DESCRIPTOR, "fileno");
        }
        return -1;
    }
    Py_INCREF(state);
    int result = socket_original(self, args, kwargs);
    if (result == 0) {
        int fd = socket_number(self);
        result = given || !plain_numbers(args, kwargs) ? check_made_socket(state, fd, socket_family(self)) : 0;
        if (result == 0) {
            descriptor_adopt(state, fd);
            descriptor_hold(fd);
        }
    }
    else if (!given) {
        explain_new_socket(state, args, kwargs);
    }
    Py_DECREF(state);
    return result;
}

bool is_socket_object(PyObject *object)
{
    return has_slot(Py_TYPE(object), offsetof(PyTypeObject, tp_init), (void *)socket_init);
}

int socket_patch(PyObject *module)
{
    PyTypeObject *type = (PyTypeObject *)PyObject_GetAttrString(module, "socket");
    if (type == NULL) {
        PyErr_Clear();
        return 0;
    }
    int result = sockets_found(type);
    Py_DECREF(type);
    return result < 0 ? -1
                      : patch_type(module, "socket", "__init__", offsetof(PyTypeObject, tp_init), (void *)socket_init,
                                   &socket_original);
}
