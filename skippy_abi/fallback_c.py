"""Owns the C that forwards calls to a fallback runtime: the set of its handles, and its loading.

Long because it is one C text, kept as a Python string so that no C file is in the tree. It stands
behind the start-up text, whose helpers it uses, and behind the records of `fallback_front.py`,
which also generates the forwarding statements of each export. A handle of the other runtime is a
real address; ours are numbers from MS_FIRST_HANDLE on, so that they are told apart by one
comparison. Only what is in the set is ever passed on: a stale or unknown pointer is not. What
is not kept is a call that runs while another thread frees its handle: there the other runtime's
own rule holds.
"""

CDEF = """
int ms_fallback_load(const char *path, char *reason, size_t room);
void ms_ask_fallback(void);
int ms_has_foreign(void);
const char *ms_library_path(void);
"""

SOURCE = r"""
/* ---- A fallback runtime: the set of what it gave out. */

enum { MS_MODEL, MS_SESSION, MS_ERROR };
enum { MS_OURS, MS_FOREIGN, MS_MIXED };

struct ms_entry {
    const void *handle;
    int kind;
    uint64_t serial, owner; /* a session's owner is the serial of its model */
    struct ms_entry *next;
};

static struct ms_entry *ms_entries[256];
static size_t ms_n_entries;
static uint64_t ms_last_serial;
static pthread_mutex_t ms_entries_lock = PTHREAD_MUTEX_INITIALIZER;

/* The link that leads to an entry, or to the end of its chain. The lock is held. */
static struct ms_entry **ms_find(const void *handle, int kind)
{
    uint64_t mixed = ((uintptr_t)handle >> 4) * UINT64_C(0x9e3779b97f4a7c15);
    struct ms_entry **link = &ms_entries[mixed >> 56];
    while (*link != NULL && ((*link)->handle != handle || (*link)->kind != kind))
        link = &(*link)->next;
    return link;
}

static int ms_may_be_foreign(const void *handle)
{
    return (uintptr_t)handle < MS_FIRST_HANDLE && __atomic_load_n(&ms_n_entries, __ATOMIC_ACQUIRE);
}

static int ms_is_foreign(const void *handle, int kind)
{
    if (!ms_may_be_foreign(handle))
        return 0;
    pthread_mutex_lock(&ms_entries_lock);
    int found = *ms_find(handle, kind) != NULL;
    pthread_mutex_unlock(&ms_entries_lock);
    return found;
}

/* Whether a live handle of the other runtime exists. */
static int ms_has_foreign(void) { return __atomic_load_n(&ms_n_entries, __ATOMIC_ACQUIRE) != 0; }

static struct ms_entry *ms_unlink(struct ms_entry **link)
{
    struct ms_entry *entry = *link;
    if (entry != NULL) {
        *link = entry->next;
        __atomic_sub_fetch(&ms_n_entries, 1, __ATOMIC_RELEASE);
    }
    return entry;
}

static void ms_link(struct ms_entry *entry, const void *owner)
{
    pthread_mutex_lock(&ms_entries_lock);
    struct ms_entry *model = owner != NULL ? *ms_find(owner, MS_MODEL) : NULL;
    if (model != NULL)
        entry->owner = model->serial;
    struct ms_entry **link = ms_find(entry->handle, entry->kind);
    /* What stands there under the same address died without our knowledge. */
    free(ms_unlink(link));
    entry->next = *link;
    *link = entry;
    __atomic_add_fetch(&ms_n_entries, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&ms_entries_lock);
}

static struct ms_entry *ms_new_entry(const void *handle, int kind)
{
    struct ms_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return NULL;
    entry->handle = handle;
    entry->kind = kind;
    entry->serial = __atomic_add_fetch(&ms_last_serial, 1, __ATOMIC_RELAXED);
    return entry;
}

/* Takes an entry out before its free is forwarded: of two concurrent frees only one gets it. */
static struct ms_entry *ms_take(const void *handle, int kind)
{
    if (!ms_may_be_foreign(handle))
        return NULL;
    pthread_mutex_lock(&ms_entries_lock);
    struct ms_entry *entry = ms_unlink(ms_find(handle, kind));
    pthread_mutex_unlock(&ms_entries_lock);
    return entry;
}

/* After a forwarded free. Sessions die with their model, as ours do; a refused free undoes it. */
static int ms_freed(struct ms_entry *entry, int status)
{
    if (status != SKIPPY_STATUS_OK) {
        ms_link(entry, NULL);
        return status;
    }
    pthread_mutex_lock(&ms_entries_lock);
    for (size_t i = 0; entry->kind == MS_MODEL && i < sizeof ms_entries / sizeof *ms_entries; i++)
        for (struct ms_entry **link = &ms_entries[i]; *link != NULL;)
            if ((*link)->owner == entry->serial)
                free(ms_unlink(link));
            else
                link = &(*link)->next;
    pthread_mutex_unlock(&ms_entries_lock);
    free(entry);
    return status;
}

/* ---- What comes back from a forwarded call. */

/* Its error object is noted, so that skippy_error_free knows whose it is. */
static int ms_told(int status, struct skippy_error **out_error)
{
    struct skippy_error *told = NULL;
    status = ms_in_range(status);
    if (status != SKIPPY_STATUS_OK && out_error != NULL &&
        ms_read(&told, out_error, sizeof told) && told != NULL) {
        struct ms_entry *entry = ms_new_entry(told, MS_ERROR);
        if (entry != NULL)
            ms_link(entry, NULL);
    }
    return status;
}

static int ms_free_foreign_error(struct skippy_error *error)
{
    struct ms_entry *entry = ms_take(error, MS_ERROR);
    if (entry == NULL)
        return 0;
    free(entry);
    ms_other.skippy_error_free(error);
    return 1;
}

/* The new handle of a forwarded open or create enters the set. */
static int ms_adopt(int kind, const void *owner, void *out, int status,
                    struct skippy_error **out_error)
{
    static const char text[] = "the fallback runtime gave a handle that cannot be kept: "
                               "no memory, or no address of a process";
    void *made = NULL;
    struct ms_entry *entry = NULL;
    if (status != SKIPPY_STATUS_OK || !ms_read(&made, out, sizeof made) || made == NULL)
        return status;
    if ((uintptr_t)made < MS_FIRST_HANDLE)
        entry = ms_new_entry(made, kind);
    if (entry != NULL) {
        ms_link(entry, owner);
        return status;
    }
    ms_clear(out);
    if (kind == MS_MODEL)
        ms_other.skippy_model_free(made, NULL);
    else
        ms_other.skippy_session_free(made, NULL);
    return ms_fail(out_error, SKIPPY_STATUS_RUNTIME_ERROR, text, sizeof text - 1);
}

static int ms_absent(const char *name, struct skippy_error **out_error)
{
    char text[200];
    int n = snprintf(text, sizeof text, "the fallback runtime does not export %s", name);
    return ms_fail(out_error, SKIPPY_STATUS_UNSUPPORTED, text, (size_t)n);
}

/* Whose sessions a batch has. Mixed batches are answered here. */
static int ms_batch(const void *sessions, size_t count, struct skippy_error **out_error)
{
    char text[200];
    const void *piece[64];
    size_t n_foreign = 0, last = 0, odd = 0, i = 0;
    if (!ms_has_foreign() || sessions == NULL)
        return MS_OURS;
    for (size_t done = 0; done < count; done += i) {
        size_t n = count - done < 64 ? count - done : 64;
        if (!ms_read(piece, (const void *const *)sessions + done, n * sizeof *piece))
            return MS_OURS;
        for (i = 0; i < n; i++)
            if (ms_is_foreign(piece[i], MS_SESSION)) {
                n_foreign++;
                last = done + i;
            } else
                odd = done + i;
    }
    if (n_foreign == 0 || n_foreign == count)
        return n_foreign == 0 ? MS_OURS : MS_FOREIGN;
    int n = snprintf(text, sizeof text,
                     "sessions: [%zu] belongs to the fallback runtime and [%zu] does not", last,
                     odd);
    ms_fail(out_error, SKIPPY_STATUS_INVALID_ARGUMENT, text, (size_t)n);
    return MS_MIXED;
}

/* Python asks on the thread of the call, which looks when Python has returned. */
static __thread int ms_asked;

static void ms_ask_fallback(void) { ms_asked = 1; }

/* ---- Loading, at most once; nothing is ever unloaded. */

static const char *ms_library_path(void) { return ms_file; }

/* Whether two addresses are in one library. */
static int ms_same_library(const void *one, const void *other)
{
    Dl_info first, second;
    return dladdr(one, &first) && dladdr(other, &second) && first.dli_fbase == second.dli_fbase;
}

static int ms_open_fallback(const char *path, char *reason, size_t room)
{
    static const uint32_t ours[] = {MS_VERSION};
    struct ms_provider found;
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) {
        const char *text = dlerror();
        snprintf(reason, room, "%s", text != NULL ? text : "the loader gives no reason");
        return 0;
    }
    struct skippy_abi_version (*version)(void) = dlsym(library, "skippy_abi_version");
    if (version == NULL) {
        snprintf(reason, room, "it has no skippy_abi_version");
        return 0;
    }
    /* It would forward to itself for ever. */
    if (ms_same_library((void *)version, ms_file)) {
        snprintf(reason, room, "it is this runtime itself");
        return 0;
    }
    struct skippy_abi_version theirs = version();
    if (theirs.major != ours[0] || theirs.minor != ours[1] || theirs.patch != ours[2]) {
        snprintf(reason, room, "it speaks ABI %u.%u.%u, this runtime %u.%u.%u", theirs.major,
                 theirs.minor, theirs.patch, ours[0], ours[1], ours[2]);
        return 0;
    }
    for (size_t i = 0; i < sizeof ms_provided / sizeof *ms_provided; i++) {
        void *symbol = dlsym(library, ms_provided[i].name);
        if (symbol == NULL && ms_provided[i].is_required) {
            snprintf(reason, room, "it has no %s", ms_provided[i].name);
            return 0;
        }
        memcpy((char *)&found + ms_provided[i].place, &symbol, sizeof symbol);
    }
    ms_other = found;
    return 1;
}

static int ms_fallback_load(const char *path, char *reason, size_t room)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int loaded = 0;
    pthread_mutex_lock(&lock);
    loaded = loaded || ms_open_fallback(path, reason, room);
    int is_there = loaded;
    pthread_mutex_unlock(&lock);
    return is_there;
}
"""
