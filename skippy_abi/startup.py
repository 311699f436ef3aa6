"""Owns the hand-written C of the engine library: error objects and the start of Python.

Long because it is one C text, kept as a Python string so that no C file is in the tree. It knows
no export by name; `generate.py` writes those below it. The rules it keeps: nothing of the host's
process changes (signals, locale, environment, standard streams), a failed start is an answer and
never an exit, and the interpreter is never finalised, since the host leaves without unloading us.
`generate.py` puts it after the guarded copies of `memory` and defines the MS_* macros with what
the build recorded.
"""

START_C = r"""
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Error objects: C memory, so that the host frees them without Python. A hidden head lets the
 * free call tell our live objects from any other pointer. */

struct ms_error {
    uint64_t magic;
    char *text;
    struct ms_error *self;
    struct skippy_error error;
};

#define MS_ERROR_MAGIC UINT64_C(0x6d73206572726f72)

/* A pointer that is stored for the caller. Guarded: its place has not been looked at yet. */
static int ms_put(void *out, const void *value)
{
    return ms_write(out, &value, sizeof value);
}

static void ms_clear(void *out)
{
    ms_put(out, NULL);
}

static int ms_fail(struct skippy_error **out_error, int status, const char *text, size_t n)
{
    if (out_error == NULL)
        return status;
    struct ms_error *made = malloc(sizeof *made);
    if (made == NULL)
        return status;
    made->magic = MS_ERROR_MAGIC;
    made->self = made;
    made->text = malloc(n + 1);
    if (made->text != NULL) {
        memcpy(made->text, text, n);
        made->text[n] = 0;
    }
    made->error.status = made->text != NULL ? status : SKIPPY_STATUS_ERROR;
    made->error.message = made->text;
    if (!ms_put(out_error, &made->error)) {
        free(made->text);
        free(made);
    }
    return status;
}

static void ms_error_free(struct skippy_error *error)
{
    struct ms_error head;
    struct ms_error *made = (void *)((char *)error - offsetof(struct ms_error, error));
    if (error == NULL || !ms_read(&head, made, sizeof head) || head.magic != MS_ERROR_MAGIC ||
        head.self != made)
        return;
    made->magic = 0;
    free(head.text);
    free(made);
}

/* The host reads the status as a closed enum: any other number is undefined behaviour there. */
static int ms_in_range(int status)
{
    return status >= 0 && status <= MS_LAST_STATUS ? status : SKIPPY_STATUS_ERROR;
}

static int ms_checked(int status, struct skippy_error **out_error)
{
    static const char text[] = "the call failed without a message; standard error has details";
    struct skippy_error *told = NULL;
    status = ms_in_range(status);
    if (status != SKIPPY_STATUS_OK && out_error != NULL &&
        ms_read(&told, out_error, sizeof told) && told == NULL)
        ms_fail(out_error, status, text, sizeof text - 1);
    return status;
}

/* ---- The start of Python: at most once, the first caller does it, the others wait. */

enum { MS_COLD, MS_ALIVE, MS_DEAD };

static int ms_state = MS_COLD;
static pthread_mutex_t ms_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char ms_cause[6000];

static const char *const ms_recorded_paths[] = {MS_PATHS NULL};

static void ms_start_failed(const char *text, size_t n)
{
    if (ms_cause[0] != 0)
        return;
    if (n >= sizeof ms_cause)
        n = sizeof ms_cause - 1;
    memcpy(ms_cause, text, n);
    ms_cause[n] = 0;
}

static int ms_give_up(const char *text)
{
    ms_start_failed(text, strlen(text));
    return 0;
}

/* Our own file, looked up while loading: the working directory may be another one later. */
static char ms_file[PATH_MAX];

/* The host opens us with RTLD_LOCAL, which hides libpython from the extension modules that need
 * its symbols. Reopen it, already loaded, as global. */
__attribute__((constructor)) static void ms_loaded(void)
{
    Dl_info info;
    if (dladdr((void *)&Py_Initialize, &info))
        dlopen(info.dli_fname, RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD);
    if (!dladdr(ms_file, &info) || realpath(info.dli_fname, ms_file) == NULL)
        ms_file[0] = 0;
}

static const char *ms_home(void)
{
    const char *home = getenv("MESH_SPECIALIZE_PYTHONHOME");
    return home != NULL && home[0] != 0 ? home : MS_HOME;
}

/* Calls `use` for every folder of Python code, ours before other people's, until one refuses. A
 * recorded one that is not absolute starts at our folder, so that it moves with the library. */
static int ms_each_path(int (*use)(const char *path, void *state), void *state)
{
    char joined[2 * PATH_MAX];
    const char *const *recorded;
    const char *given = getenv("MESH_SPECIALIZE_PYTHONPATH");
    if (given == NULL || given[0] == 0) {
        int folder_bytes = (int)strlen(ms_file);
        while (folder_bytes > 0 && ms_file[folder_bytes - 1] != '/')
            folder_bytes--;
        for (recorded = ms_recorded_paths; *recorded != NULL; recorded++) {
            int kept = (*recorded)[0] == '/' ? 0 : folder_bytes;
            snprintf(joined, sizeof joined, "%.*s%s", kept, ms_file, *recorded);
            if (!use(joined, state))
                return 0;
        }
        return 1;
    }
    char *copy = strdup(given), *rest = copy, *path;
    int whole = copy != NULL;
    while (whole && (path = strsep(&rest, ":")) != NULL)
        if (path[0] != 0)
            whole = use(path, state);
    free(copy);
    return whole;
}

static int ms_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int ms_take_status(PyStatus status)
{
    char text[1000];
    if (!PyStatus_Exception(status))
        return 1;
    snprintf(text, sizeof text, "%s: %s", status.func != NULL ? status.func : "Python",
             status.err_msg != NULL ? status.err_msg : "asked to exit");
    return ms_give_up(text);
}

static int ms_add_config_path(const char *path, void *state)
{
    PyConfig *config = state;
    wchar_t *wide = Py_DecodeLocale(path, NULL);
    if (wide == NULL)
        return ms_give_up("a folder name on the path cannot be decoded");
    PyStatus status = PyWideStringList_Append(&config->module_search_paths, wide);
    PyMem_RawFree(wide);
    return ms_take_status(status);
}

/* The standard library's folders come first: a site folder must not shadow them. */
static int ms_add_standard_library(PyConfig *config)
{
    /* The third is only looked for: without it Python prints a page before it gives up. */
    static const char *const inside[] = {MS_STDLIB, MS_DYNLOAD, MS_STDLIB "/encodings"};
    char path[4200], text[4300];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", ms_home(), inside[i]);
        if (!ms_is_folder(path)) {
            snprintf(text, sizeof text, "the Python standard library is missing: %s", path);
            return ms_give_up(text);
        }
        if (i < 2 && !ms_add_config_path(path, config))
            return 0;
    }
    return 1;
}

static int ms_configure(PyConfig *config)
{
    /* Isolated: no PYTHON* variable, no user site, no command line, no signal handlers. No site
     * module either: everything it would find is recorded, and its failure ends the process. */
    config->site_import = 0;
    config->install_signal_handlers = 0;
    config->configure_c_stdio = 0;
    config->parse_argv = 0;
    config->module_search_paths_set = 1;
    return ms_take_status(PyConfig_SetBytesString(config, &config->home, ms_home())) &&
           ms_take_status(PyConfig_SetBytesString(config, &config->executable, MS_EXECUTABLE)) &&
           ms_add_standard_library(config) && ms_each_path(ms_add_config_path, config) &&
           ms_take_status(Py_InitializeFromConfig(config));
}

static int ms_initialize(void)
{
    PyPreConfig before;
    PyConfig config;
    struct sigaction interrupt;
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    if (!ms_take_status(Py_PreInitialize(&before)))
        return 0;
    PyConfig_InitIsolatedConfig(&config);
    int started = ms_configure(&config);
    PyConfig_Clear(&config);
    if (!started)
        return 0;
    /* The first import of `signal` takes over the interrupt even when handlers are not wanted.
     * Do that import now and give the interrupt back. */
    sigaction(SIGINT, NULL, &interrupt);
    PyObject *module = PyImport_ImportModule("signal");
    if (module == NULL)
        PyErr_Clear();
    Py_XDECREF(module);
    sigaction(SIGINT, &interrupt, NULL);
    PyEval_SaveThread();
    return 1;
}

static int ms_append_path(const char *path, void *state)
{
    PyObject *list = state, *text = PyUnicode_DecodeFSDefault(path);
    int added = text != NULL;
    if (added && PySequence_Contains(list, text) == 0)
        added = PyList_Append(list, text) == 0;
    Py_XDECREF(text);
    return added;
}

static void ms_keep_exception(void)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    PyObject *text = value != NULL ? PyObject_Repr(value) : NULL;
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    ms_give_up(utf8 != NULL ? utf8 : "an exception that has no text");
    Py_XDECREF(text);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
}

/* In an interpreter that somebody else started, our folders come last. */
static int ms_prepare(int is_ours)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *path = PySys_GetObject("path"), *module = NULL;
    int ready = is_ours || (path != NULL && PyList_Check(path) &&
                            ms_each_path(ms_append_path, path));
    if (ready)
        module = PyImport_ImportModule("_cffi_backend");
    if (module == NULL && PyErr_Occurred())
        ms_keep_exception();
    else if (module == NULL)
        ms_give_up("sys.path is not a list");
    int whole = module != NULL;
    Py_XDECREF(module);
    PyGILState_Release(gil);
    return whole;
}

static int py_alive(void);
static void ms_leave(void);
static int ms_leaving;

/* A Python that the host holds with global symbols takes the place of the one we were built for. */
static int ms_right_python(void)
{
    char text[200];
    if (Py_Version >> 16 == PY_VERSION_HEX >> 16)
        return 1;
    snprintf(text, sizeof text, "built for Python %s, and the process holds Python %lu.%lu",
             PY_VERSION, Py_Version >> 24, Py_Version >> 16 & 255);
    return ms_give_up(text);
}

static int ms_start(void)
{
    if (!ms_right_python())
        return 0;
    int is_ours = !Py_IsInitialized();
    if (is_ours && !ms_initialize())
        return 0;
    if (!ms_prepare(is_ours))
        return 0;
    if (cffi_start_python() != 0)
        return ms_give_up("cffi could not make its module; standard error has details");
    if (ms_cause[0] != 0)
        return 0;
    if (py_alive() != 1)
        return ms_give_up(MS_BOOT " did not finish the registration of the exports");
    return 1;
}

static int ms_start_once(void)
{
    static int entered = 0;
    pthread_mutex_lock(&ms_lock);
    if (!entered) {
        entered = 1;
        int state = ms_start() ? MS_ALIVE : MS_DEAD;
        /* After Python's libraries, whose own handlers and destructors it must come before. */
        if (state == MS_ALIVE)
            atexit(ms_leave);
        __atomic_store_n(&ms_state, state, __ATOMIC_RELEASE);
    }
    int state = ms_state;
    pthread_mutex_unlock(&ms_lock);
    return state;
}

/* ---- The answer while there is no Python. */

struct ms_text {
    char bytes[12000];
    size_t used;
};

static void ms_say(struct ms_text *text, const char *piece)
{
    size_t n = strlen(piece), room = sizeof text->bytes - 1 - text->used;
    if (n > room)
        n = room;
    memcpy(text->bytes + text->used, piece, n);
    text->used += n;
}

static int ms_say_path(const char *path, void *state)
{
    ms_say(state, "\n  ");
    ms_say(state, path);
    if (!ms_is_folder(path))
        ms_say(state, "  (missing)");
    return 1;
}

static int ms_not_started(struct skippy_error **out_error)
{
    struct ms_text text = {.used = 0};
    int state = __atomic_load_n(&ms_state, __ATOMIC_ACQUIRE);
    if (state == MS_COLD)
        ms_say(&text, "called while the embedded Python was still starting");
    else if (__atomic_load_n(&ms_leaving, __ATOMIC_ACQUIRE))
        ms_say(&text, "called while the process is exiting");
    else if (state == MS_ALIVE)
        ms_say(&text, "the Python that served this call has been shut down by its owner");
    else {
        ms_say(&text, "the embedded Python did not start: ");
        ms_say(&text, ms_cause);
        ms_say(&text, "\nPython home (MESH_SPECIALIZE_PYTHONHOME):");
        ms_say_path(ms_home(), &text);
        ms_say(&text, "\ncode paths (MESH_SPECIALIZE_PYTHONPATH):");
        ms_each_path(ms_say_path, &text);
    }
    return ms_fail(out_error, SKIPPY_STATUS_RUNTIME_ERROR, text.bytes, text.used);
}
"""
