/* Files that sqlite3 and dbm open inside their libraries: checks the file name, and sets an authorizer for ATTACH
 * and VACUUM INTO. */
#include "io/io.h"

#include <string.h>
#include <unistd.h>

static initproc connection_original = NULL;
static PyObject *authoriser = NULL;
static FAST_THREAD_LOCAL bool parameters_checked = false;
static FAST_THREAD_LOCAL PyObject *refused = NULL; /* the denial behind sqlite's "not authorized" */

enum {
    SQLITE_OK = 0,
    SQLITE_DENY = 1,
    SQLITE_IGNORE = 2,
    SQLITE_PRAGMA = 19,
    SQLITE_ATTACH = 24,
    SQLITE_FUNCTION = 31
};

/* The path of a "file:" URI, decoded as sqlite does. */
static void uri_path(const char *uri, char *path)
{
    const char *p = uri + 5;
    size_t used = 0;
    if (strncmp(p, "//", 2) == 0) {
        p += 2;
        p += strcspn(p, "/?#"); /* authority: empty or localhost, sqlite refuses others */
    }
    for (; *p && *p != '?' && *p != '#' && used < PATH_MAX - 1; p++) {
        if (*p == '%' && hex_digit(p[1]) >= 0 && hex_digit(p[2]) >= 0) {
            path[used++] = (char)(hex_digit(p[1]) * 16 + hex_digit(p[2]));
            p += 2;
        }
        else {
            path[used++] = *p;
        }
    }
    path[used] = '\0';
}

static bool is_memory(const char *name)
{
    return name[0] == '\0' || strcmp(name, ":memory:") == 0;
}

typedef struct {
    char path[PATH_MAX];
    bool memory, read_only;
} Database;

/* The last "mode=" of the query counts, as for sqlite; a fragment never does. */
static void read_query(const char *uri, Database *database)
{
    const char *query = strchr(uri, '?'), *end = uri + strcspn(uri, "#");
    if (query != NULL && strchr(query, '%') != NULL) {
        return; /* escaped names and values: taken for a database on disk that is written */
    }
    for (const char *p = query && query < end ? query + 1 : end; p < end;) {
        size_t length = strcspn(p, "&#");
        if (strncmp(p, "mode=", 5) == 0) {
            database->memory = length == 11 && strncmp(p + 5, "memory", 6) == 0;
            database->read_only = length == 7 && strncmp(p + 5, "ro", 2) == 0;
        }
        p += length + 1;
    }
}

static void read_name(const char *name, bool uri, Database *database)
{
    *database = (Database){.memory = false};
    if (uri && strncmp(name, "file:", 5) == 0) {
        uri_path(name, database->path);
        read_query(name, database);
    }
    else {
        strcpy(database->path, name);
    }
    database->memory = database->memory || is_memory(database->path);
}

/* Decides about a database file; `location` gets its resolved path, empty for a database in memory. */
static int check_database(State *state, const char *name, bool uri, char *location)
{
    Database database;
    PathText text;
    location[0] = '\0';
    if (strlen(name) >= PATH_MAX) {
        PyErr_SetString(PyExc_ValueError, "database name is too long");
        return -1;
    }
    read_name(name, uri, &database);
    if (database.memory) {
        return 0;
    }
    PyObject *object = PyUnicode_DecodeFSDefault(database.path);
    if (object == NULL || path_text(object, &text) < 0) {
        Py_XDECREF(object);
        return -1;
    }
    Py_DECREF(object);
    if (location_of(&text, FOLLOW, location) < 0) {
        Py_DECREF(text.object);
        return -1;
    }
    unsigned wanted = OP_READ, granted;
    if (!database.read_only) {
        wanted |= access(location, F_OK) == 0 ? OP_MODIFY : OP_CREATE | OP_MODIFY;
    }
    int result = grant(state, location, wanted, &granted);
    if (result == 0 && granted != wanted) {
        /* outside the roots nothing tells whether the file is there */
        bool inside = location_mask(state, location) & OP_READ;
        deny_path(state, inside ? location : text.text, inside ? wanted & ~granted : OP_READ, false);
        result = -1;
    }
    Py_DECREF(text.object);
    return result;
}

/* ---- sqlite3.connect ------------------------------------------------------------------------------ */

static PyObject *named(PyObject *args, PyObject *kwargs, Py_ssize_t index, const char *name)
{
    if (index < PyTuple_GET_SIZE(args)) {
        return PyTuple_GET_ITEM(args, index);
    }
    return kwargs ? PyDict_GetItemString(kwargs, name) : NULL;
}

static PyObject *checked_database(State *state, PyObject *database, bool uri)
{
    char location[PATH_MAX];
    PyObject *exact = path_exact(database), *bytes = NULL;
    if (exact == NULL || !PyUnicode_FSConverter(exact, &bytes)) {
        Py_XDECREF(exact);
        return NULL;
    }
    int failed = check_database(state, PyBytes_AS_STRING(bytes), uri, location);
    Py_DECREF(bytes);
    if (failed < 0) {
        Py_CLEAR(exact);
    }
    else if (location[0] && !uri) {
        Py_SETREF(exact, path_object(location, exact)); /* no link left to exchange */
    }
    return exact;
}

static int connect_checked(PyObject *self, PyObject *args, PyObject *kwargs, PyObject *database)
{
    PyObject *changed = PySequence_List(args), *keywords = changed && kwargs ? PyDict_Copy(kwargs) : NULL;
    PyObject *tuple = NULL;
    int result = -1;
    if (kwargs != NULL && keywords == NULL) {
        Py_CLEAR(changed); /* without the keywords it would mean something else */
    }
    if (changed != NULL && PyList_GET_SIZE(changed) > 0) {
        result = PyList_SetItem(changed, 0, Py_NewRef(database));
    }
    else if (changed != NULL && keywords != NULL) {
        result = PyDict_SetItemString(keywords, "database", database);
    }
    if (result == 0) {
        tuple = PyList_AsTuple(changed);
        result = tuple ? connection_original(self, tuple, keywords) : -1;
    }
    Py_XDECREF(changed);
    Py_XDECREF(keywords);
    Py_XDECREF(tuple);
    return result;
}

static int connection_init(PyObject *self, PyObject *args, PyObject *kwargs);

/* The type that sqlite3 made, in this copy of its module; NULL for an object of another type. */
static PyTypeObject *connection_type(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object), *found = NULL;
    for (; type != NULL; type = type->tp_base) {
        found = type->tp_init == connection_init ? type : found;
    }
    return found;
}

/* Sets our authoriser, in a state in which set_authorizer is not refused. Statements prepared before are prepared anew.
 */
static int authorise_connection(State *state, PyObject *connection)
{
    PyTypeObject *type = connection_type(connection);
    if (type == NULL) {
        PyErr_SetString(PyExc_TypeError, "not a connection");
        return -1;
    }
    PyObject *set = PyObject_GetAttrString((PyObject *)type, "set_authorizer"), *done = NULL;
    State *outside = set ? state_new(state, NULL, MODE_BYPASS, true, NULL) : NULL;
    Entered entered;
    if (outside != NULL && state_enter(outside, &entered) == 0) {
        done = PyObject_CallFunctionObjArgs(set, connection, authoriser, NULL);
        state_leave(&entered);
    }
    Py_XDECREF(outside);
    Py_XDECREF(set);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* sqlite would choose a folder for temporary files, so they are kept in memory. */
static int keep_in_memory(PyObject *connection)
{
    PyObject *module = PyType_GetModule(connection_type(connection));
    PyObject *cursor = module ? PyObject_CallMethod(module, "Cursor", "O", connection) : NULL;
    PyObject *done = cursor ? PyObject_CallMethod(cursor, "execute", "s", "PRAGMA temp_store = MEMORY") : NULL;
    Py_XDECREF(cursor);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int connection_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    PyObject *database = state ? named(args, kwargs, 0, "database") : NULL;
    if (LIKELY(state == NULL) || database == NULL) {
        return connection_original(self, args, kwargs);
    }
    PyObject *uri = named(args, kwargs, 7, "uri");
    PyObject *exact = checked_database(state, database, uri != NULL && PyObject_IsTrue(uri) == 1);
    if (exact == NULL) {
        return -1;
    }
    int result = connect_checked(self, args, kwargs, exact);
    Py_DECREF(exact);
    /* In this order: the authoriser would be asked about the statement. */
    return result < 0 || keep_in_memory(self) < 0 ? -1 : authorise_connection(state, self);
}

/* Both readings of the name must pass: whether it is a URI depends on how the connection was opened. */
static int attach_allowed(State *state, PyObject *name)
{
    char location[PATH_MAX];
    PyObject *bytes = NULL;
    if (!PyUnicode_FSConverter(name, &bytes)) {
        return -1;
    }
    const char *text = PyBytes_AS_STRING(bytes);
    int result = check_database(state, text, true, location);
    if (result == 0 && strncmp(text, "file:", 5) == 0 && strchr(text, '/') != NULL) {
        result = check_database(state, text, false, location);
    }
    Py_DECREF(bytes);
    return result;
}

static bool loads_extension(PyObject *name)
{
    return PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "load_extension") == 0;
}

static int authorise_attach(State *state, PyObject *name)
{
    if (PyUnicode_Check(name)) {
        return attach_allowed(state, name);
    }
    if (parameters_checked) {
        return 0; /* the name is a parameter, and every parameter was looked at */
    }
    deny_text(state, DENY_FILESYSTEM, "ATTACH");
    return -1;
}

static bool is_text(PyObject *value, const char *text)
{
    const char *given = PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : NULL;
    return given != NULL && strcasecmp(given, text) == 0;
}

/* The pragma for temporary files, which is global for the process. Guarded connections keep them in memory, so a change
 * does nothing. */
static int authorise_pragma(State *state, PyObject *name, PyObject *value)
{
    if (value == Py_None) {
        return SQLITE_OK;
    }
    if (is_text(name, "temp_store_directory") || is_text(name, "data_store_directory")) {
        deny_text(state, DENY_TAMPER, "temp_store_directory");
        return -1;
    }
    return is_text(name, "temp_store") && !is_text(value, "memory") && !is_text(value, "2") ? SQLITE_IGNORE : SQLITE_OK;
}

/* sqlite asks before every action of a statement; only these reach outside the database that was opened. `own` is the
 * function of the subject itself, which is asked about what the guard allows; NULL without one. */
static PyObject *authorise(PyObject *own, PyObject *const *args, Py_ssize_t nargs)
{
    State *state = state_guarding();
    long action = nargs == 5 ? PyLong_AsLong(args[0]) : -1;
    int answer = 0;
    if (state != NULL && action == SQLITE_ATTACH) {
        answer = authorise_attach(state, args[1]);
    }
    else if (state != NULL && action == SQLITE_FUNCTION && loads_extension(args[2])) {
        deny_text(state, DENY_TAMPER, "load_extension");
        answer = -1;
    }
    else if (state != NULL && action == SQLITE_PRAGMA) {
        answer = authorise_pragma(state, args[1], args[2]);
    }
    if (answer < 0 || PyErr_Occurred()) {
        answer = -1;
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        Py_XSETREF(refused, value);
        Py_XDECREF(type);
        Py_XDECREF(trace);
    }
    if (own != NULL && answer == SQLITE_OK) {
        return PyObject_Vectorcall(own, args, (size_t)nargs, NULL);
    }
    return PyLong_FromLong(answer < 0 ? SQLITE_DENY : answer);
}

static PyMethodDef authorise_def = {"authorise", (PyCFunction)(void (*)(void))authorise, METH_FASTCALL, NULL};

/* Connection.set_authorizer(callback) */
PyObject *on_authoriser(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, 0, "authorizer_callback");
    if (at < 0 || (call->args[at] != Py_None && !PyCallable_Check(call->args[at]))) {
        return call_original(call);
    }
    PyObject *own = call->args[at] == Py_None ? NULL : bind_to(state, call->args[at]);
    PyObject *both = own ? PyCFunction_New(&authorise_def, own) : Py_NewRef(authoriser);
    PyObject *result = both && !PyErr_Occurred() ? call_with(call, at, both) : NULL;
    Py_XDECREF(both);
    Py_XDECREF(own);
    return result;
}

/* ---- statements ------------------------------------------------------------------------------------ */

/* Whether a statement may name another file. Both words have "ac" in them: one pass looks for that. */
static bool mentions_file(const char *sql, Py_ssize_t length)
{
    for (Py_ssize_t i = 1; i < length; i++) {
        if ((sql[i] | 32) != 'c' || (sql[i - 1] | 32) != 'a') {
            continue;
        }
        if ((i >= 4 && strncasecmp(sql + i - 4, "attach", 6) == 0) ||
            (i >= 2 && strncasecmp(sql + i - 2, "vacuum", 6) == 0)) {
            return true;
        }
    }
    return false;
}

/* The latest statement that names no other file: the same text is checked often, first for a connection and then for
 * its cursor. An exact str, kept so that its address is not reused. */
static bool names_no_file(PyObject *statement, const char *sql, Py_ssize_t length)
{
    enum { LONGEST_KEPT = 4096 };
    static PyObject *latest = NULL;
    if (statement == latest) {
        return true;
    }
    if (mentions_file(sql, length)) {
        return false;
    }
    if (PyUnicode_CheckExact(statement) && length <= LONGEST_KEPT) {
        Py_XSETREF(latest, Py_NewRef(statement));
    }
    return true;
}

/* The next word or sign of a statement, lower-cased, without blanks and comments; empty at the end. */
static const char *next_token(const char *sql, char *token, size_t size)
{
    size_t used = 0;
    for (;;) {
        sql += strspn(sql, " \t\r\n\f");
        if (strncmp(sql, "--", 2) == 0) {
            sql += strcspn(sql, "\n");
        }
        else if (strncmp(sql, "/*", 2) == 0) {
            const char *end = strstr(sql + 2, "*/");
            sql = end ? end + 2 : sql + strlen(sql);
        }
        else {
            break;
        }
    }
    do {
        if (*sql != '\0' && used + 1 < size) {
            token[used++] = (char)Py_TOLOWER(*sql);
        }
        sql += *sql != '\0';
    } while (*sql != '\0' && used > 0 && (Py_ISALNUM(token[used - 1]) || strchr("_:@$?", token[used - 1])) &&
             (Py_ISALNUM(*sql) || *sql == '_'));
    token[used] = '\0';
    return sql;
}

static bool is_parameter(const char *token)
{
    return token[0] != '\0' && strchr("?:@$", token[0]) != NULL;
}

/* Exactly ATTACH [DATABASE] ? AS name, or VACUUM [name] INTO ?: the one parameter is the file, and nothing is computed.
 */
static bool names_file_by_parameter(const char *sql)
{
    char first[32], token[64], after[64];
    sql = next_token(sql, first, sizeof first);
    sql = next_token(sql, token, sizeof token);
    if (strcmp(first, "attach") == 0) {
        if (strcmp(token, "database") == 0) {
            sql = next_token(sql, token, sizeof token);
        }
        next_token(sql, after, sizeof after);
        return is_parameter(token) && strcmp(after, "as") == 0 && strpbrk(sql, "?:@$") == NULL;
    }
    if (strcmp(first, "vacuum") == 0) {
        if (strcmp(token, "into") != 0) {
            sql = next_token(sql, token, sizeof token);
        }
        sql = next_token(sql, after, sizeof after);
        next_token(sql, first, sizeof first);
        return strcmp(token, "into") == 0 && is_parameter(after) && (first[0] == '\0' || first[0] == ';');
    }
    return false;
}

/* Parameters as a tuple of immutable plain values; NULL without an exception for others. */
static PyObject *plain_parameters(State *state, PyObject *given)
{
    if (!PyTuple_CheckExact(given) && !PyList_CheckExact(given)) {
        return NULL;
    }
    PyObject *values = PySequence_Tuple(given);
    if (values != NULL && PyTuple_GET_SIZE(values) != 1) {
        Py_CLEAR(values);
        return NULL;
    }
    for (Py_ssize_t i = 0; values != NULL && i < PyTuple_GET_SIZE(values); i++) {
        PyObject *value = PyTuple_GET_ITEM(values, i);
        bool number = PyLong_CheckExact(value) || PyFloat_CheckExact(value) || value == Py_None;
        if (!number && (!PyUnicode_CheckExact(value) || attach_allowed(state, value) < 0)) {
            Py_CLEAR(values);
        }
    }
    return values;
}

static PyObject *connection_of(PyObject *self)
{
    return connection_type(self) ? Py_NewRef(self) : PyObject_GetAttrString(self, "connection");
}

/* A connection the host made has no authoriser of ours: it gets one before such a statement is prepared. */
static PyObject *run_attaching(State *state, Call *call, const char *sql)
{
    PyObject *connection = connection_of(call->self);
    int ready = connection ? authorise_connection(state, connection) : -1;
    Py_XDECREF(connection);
    if (ready < 0) {
        return NULL;
    }
    PyObject *values = NULL;
    if (call->nargs > 1 && names_file_by_parameter(sql)) {
        values = plain_parameters(state, call->args[1]);
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    parameters_checked = values != NULL;
    PyObject *result = values ? call_with(call, 1, values) : call_original(call);
    parameters_checked = false;
    Py_XDECREF(values);
    return result;
}

/* sqlite turns a refusal into "not authorized": the caller gets the denial itself. */
PyObject *on_sql(State *state, Call *call)
{
    Py_ssize_t length = 0;
    PyObject *given = call->nargs > 0 && PyUnicode_Check(call->args[0]) ? call->args[0] : NULL;
    const char *sql = given ? PyUnicode_AsUTF8AndSize(given, &length) : NULL;
    bool attaching = sql != NULL && !names_no_file(given, sql, length);
    if (sql == NULL && PyErr_Occurred()) {
        return NULL;
    }
    Py_CLEAR(refused);
    PyObject *result = attaching ? run_attaching(state, call, sql) : call_original(call);
    if (result == NULL && refused != NULL) {
        PyErr_Clear();
        PyErr_SetObject((PyObject *)Py_TYPE(refused), refused);
    }
    Py_CLEAR(refused);
    return result;
}

int databases_patch(PyObject *module)
{
    authoriser = authoriser ? authoriser : PyCFunction_New(&authorise_def, NULL);
    return !authoriser ? -1
                       : patch_type(module, "Connection", "__init__", offsetof(PyTypeObject, tp_init),
                                    (void *)connection_init, &connection_original);
}

/* ---- dbm ------------------------------------------------------------------------------------------- */

/* open(filename, flags="r", mode=0o666): the library appends its own suffixes in the same folder. */
PyObject *on_dbm(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, 0, "filename"), flags_at = call_find(call, 1, "flags");
    PathText text;
    if (at < 0 || path_text(call->args[at], &text) < 0) {
        return at < 0 ? call_original(call) : NULL;
    }
    const char *flags =
        flags_at >= 0 && PyUnicode_Check(call->args[flags_at]) ? PyUnicode_AsUTF8(call->args[flags_at]) : "r";
    PyObject *result = NULL;
    char location[PATH_MAX];
    if (flags != NULL) {
        unsigned wanted = flags[0] == 'r'   ? OP_READ
                          : flags[0] == 'w' ? OP_READ | OP_MODIFY
                                            : OP_READ | OP_CREATE | OP_MODIFY;
        if (location_of(&text, FOLLOW, location) == 0 && require(state, location, wanted) == 0) {
            PyObject *path = path_object(location, text.object);
            result = path ? call_with(call, at, path) : NULL;
            Py_XDECREF(path);
        }
    }
    Py_DECREF(text.object);
    return result;
}
