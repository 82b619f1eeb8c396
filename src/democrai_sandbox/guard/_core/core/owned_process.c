/* The setting that this process runs one subject alone. */
#include "core/core.h"

bool process_owned = false;    /* its standard streams and settings are the subject's */
bool process_confined = false; /* the kernel holds what native code does here to the subject's declarations */

/* own_process(confined): declares that this process runs one subject alone. Its standard streams and settings are the
 * subject's then. */
PyObject *core_own_process(PyObject *module, PyObject *confined)
{
    State *state = state_guarding();
    if (state != NULL) {
        return deny_text(state, DENY_TAMPER, "own_process");
    }
    process_owned = true;
    process_confined = confined == Py_True;
    Py_RETURN_NONE;
}
