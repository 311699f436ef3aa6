"""Owns the C text that reads and writes memory at addresses that C callers pass.

The copies go through process_vm_readv and process_vm_writev on our own process: the kernel checks
the range and answers EFAULT where a plain access would end the host. Where a sandbox forbids the
two calls (EPERM, ENOSYS) plain copies are all there is, and NULL is the only bad pointer caught.
The text goes into the generated front; nothing here runs in Python.
"""

CDEF = """
int ms_read(void *to, const void *from, size_t n);
int ms_write(void *to, const void *from, size_t n);
int ms_readable(const void *from, size_t n);
int ms_writable(void *to, size_t n);
int64_t ms_strlen(const void *from, size_t limit);
"""

SOURCE = r"""
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* No user-space mapping of x86-64 or AArch64 Linux is that long. */
#define MS_MAX_RANGE ((size_t)1 << 47)
#define MS_PAGE ((uintptr_t)4096)

static int ms_forbidden(void) { return errno == EPERM || errno == ENOSYS || errno == EACCES; }

/* One direction of the guarded copy: 1 when all n bytes moved. A single call moves at most
 * about 2 GiB, hence the loop. */
static int ms_copy(char *to, const char *from, size_t n, int caller_is_source) {
    if (n > MS_MAX_RANGE) return 0;
    while (n) {
        struct iovec ours, theirs;
        size_t part = n < ((size_t)1 << 30) ? n : (size_t)1 << 30;
        ssize_t moved;
        ours.iov_len = theirs.iov_len = part;
        if (caller_is_source) {
            ours.iov_base = to; theirs.iov_base = (void *)from;
            moved = process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0);
        } else {
            ours.iov_base = (void *)from; theirs.iov_base = to;
            moved = process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0);
        }
        if (moved < 0 && ms_forbidden()) { memcpy(to, from, n); return 1; }
        if (moved <= 0) return 0;
        to += moved; from += moved; n -= (size_t)moved;
    }
    return 1;
}

static int ms_read(void *to, const void *from, size_t n) { return ms_copy(to, from, n, 1); }

static int ms_write(void *to, const void *from, size_t n) { return ms_copy(to, from, n, 0); }

static int ms_wraps(const void *at, size_t n) {
    return n > MS_MAX_RANGE || (uintptr_t)at + n < (uintptr_t)at;
}

static int ms_same_page(const void *one, const void *other) {
    return (uintptr_t)one / MS_PAGE == (uintptr_t)other / MS_PAGE;
}

/* The ends decide: a hole inside is found by the copy itself. */
static int ms_readable(const void *from, size_t n) {
    char byte;
    if (!n) return 1;
    if (ms_wraps(from, n)) return 0;
    if (!ms_read(&byte, from, 1)) return 0;
    from = (const char *)from + n - 1;
    return ms_same_page(from, (const char *)from - (n - 1)) || ms_read(&byte, from, 1);
}

static int ms_writable(void *to, size_t n) {
    char byte, *last;
    if (!n) return 1;
    if (ms_wraps(to, n)) return 0;
    last = (char *)to + n - 1;
    if (!ms_read(&byte, to, 1) || !ms_write(to, &byte, 1)) return 0;
    return ms_same_page(to, last) || (ms_read(&byte, last, 1) && ms_write(last, &byte, 1));
}

/* Bytes before the terminator, or -1 when memory or limit ends first. Reads never cross into a
 * page before the one in hand is known to hold no terminator. */
static int64_t ms_strlen(const void *from, size_t limit) {
    char page[4096];
    size_t length = 0;
    while (length < limit) {
        const char *at = (const char *)from + length;
        size_t part = MS_PAGE - ((uintptr_t)at & (MS_PAGE - 1));
        const char *end;
        if (!ms_read(page, at, part)) return -1;
        end = memchr(page, 0, part);
        if (end) return (int64_t)(length + (size_t)(end - page));
        length += part;
    }
    return -1;
}
"""
