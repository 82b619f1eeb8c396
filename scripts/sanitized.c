/* Interpreter for `make sanitize`: it is linked with the sanitizer runtimes first, so children that tests start with
 * sys.executable have them too, in every environment. */
#include <Python.h>

const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

const char *__asan_default_options(void)
{
    /* Leaks: CPython does not free all memory at exit. Signals: faulthandler and its tests install other handlers. */
    return "detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:allocator_may_return_null=1:"
           "detect_stack_use_after_return=0:abort_on_error=1:log_path=" REPORTS "/asan";
}

const char *__ubsan_default_options(void)
{
    return "print_stacktrace=1:abort_on_error=1:log_path=" REPORTS "/ubsan";
}

int main(int argc, char **argv)
{
    PyPreConfig before;
    PyPreConfig_InitPythonConfig(&before);
    before.allocator = PYMEM_ALLOCATOR_MALLOC; /* so that the sanitizer sees every object */
    PyStatus status = Py_PreInitializeFromBytesArgs(&before, argc, argv);
    if (PyStatus_Exception(status)) {
        Py_ExitStatusException(status);
    }
    return Py_BytesMain(argc, argv);
}
