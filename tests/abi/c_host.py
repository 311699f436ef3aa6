"""Owns a small C program that opens the libraries as the host does: lazily and with local symbols.

Python's own loader would hide what local symbols break, so the tests run this in a child process.
It takes libraries to open, then one mode, and prints what it saw; it knows no Python of ours.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Ran = subprocess.CompletedProcess[str]
Host = Callable[..., Ran]


class Libraries(NamedTuple):
    """Paths of the two libraries."""

    engine: Path
    stubs: Path


SOURCE = r"""
#include <dlfcn.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct error { int status; const char *message; };
struct version { uint32_t major, minor, patch; };
extern char **environ;
static void *library;
static int calls = 1;

static void *look_up(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) { printf("no %s\n", name); exit(9); }
    return found;
}

static int eog(struct error **error)
{
    int (*call)(void *, int32_t, bool *, struct error **) = look_up("skippy_token_is_eog");
    bool answer = false;
    return call(NULL, 1, &answer, error);
}

static void report(int status, struct error *error)
{
    void (*release)(struct error *) = look_up("skippy_error_free");
    printf("status %d object %d\n", status, error ? error->status : -1);
    if (error) printf("%s\n", error->message ? error->message : "(null)");
    release(error);
}

static void *first_call(void *barrier)
{
    pthread_barrier_wait(barrier);
    return (void *)(intptr_t)eog(NULL);
}

static void *call_for_ever(void *unused)
{
    for (;;) eog(NULL);
    return unused;
}

static void *leave(void *how)
{
    usleep(20000);
    if (strcmp(how, "exit")) _exit(3);
    exit(3);
}

static void snapshot(char *text, size_t room)
{
    size_t n = 0;
    for (int i = 1; i < 65; i++) {
        struct sigaction action = {0};
        sigaction(i, NULL, &action);
        n += snprintf(text + n, room - n, "%d:%p ", i, (void *)action.sa_handler);
    }
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    mode_t old = umask(0); umask(old);
    n += snprintf(text + n, room - n, "%lx %s %d %o ", *(unsigned long *)&mask,
                  setlocale(LC_ALL, NULL), fegetround(), old);
    n += strlen(getcwd(text + n, room - n));
    for (char **e = environ; *e; e++) n += snprintf(text + n, room - n, " %s", *e);
}

static int run(const char *mode, const char *argument)
{
    struct error *error = (void *)1;
    pthread_t thread;
    if (!strcmp(mode, "version")) {
        struct version v = ((struct version (*)(void))look_up("skippy_abi_version"))();
        uint64_t f = ((uint64_t (*)(void))look_up("skippy_abi_features"))();
        int (*up)(void) = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
        printf("%u.%u.%u %llx python %d\n", v.major, v.minor, v.patch, (unsigned long long)f,
               up ? up() : -1);
    } else if (!strcmp(mode, "eog")) {
        int status = eog(&error);
        report(status, error);
    } else if (!strcmp(mode, "status-as-exit")) {
        return 40 + eog(&error);
    } else if (!strcmp(mode, "call")) {
        int (*call)(void *, struct error **) = look_up(argument);
        int status = call((void *)8, &error);
        report(status, error);
    } else if (!strcmp(mode, "shut-down")) {
        int first = eog(NULL);
        ((int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure"))();
        ((int (*)(void))dlsym(RTLD_DEFAULT, "Py_FinalizeEx"))();
        int status = eog(&error);
        printf("first %d\n", first);
        report(status, error);
    } else if (!strcmp(mode, "trim")) {
        int (*call)(void *, uint64_t, struct error **) = look_up("skippy_trim_session");
        int status = call(NULL, 1, &error);
        report(status, error);
    } else if (!strcmp(mode, "open")) {
        void *model = (void *)1;
        int (*call)(const char *, void *, void **, struct error **) = look_up("skippy_model_open");
        int status = call(argument, NULL, &model, &error);
        printf("model %p\n", model);
        report(status, error);
    } else if (!strcmp(mode, "neutral")) {
        printf("%d ", ((int (*)(void *))look_up("skippy_session_position"))(NULL));
        printf("%d ", ((int (*)(void *))look_up("skippy_session_batch_size"))(NULL));
        printf("%d ", ((void *(*)(void *))look_up("skippy_session_llama_context"))(NULL) != NULL);
        int (*reset)(void *, void *, size_t, void *) = look_up("skippy_ngram_cache_reset");
        printf("%d ", reset(NULL, NULL, 0, &error));
        printf("%d\n", error == (void *)1);
    } else if (!strcmp(mode, "free-null")) {
        int (*call)(void *, struct error **) = look_up(argument);
        int status = call(NULL, &error);
        printf("%d %d\n", status, error == NULL);
    } else if (!strcmp(mode, "threads")) {
        pthread_t all[16];
        pthread_barrier_t barrier;
        int failed = 0;
        void *status;
        pthread_barrier_init(&barrier, NULL, 16);
        for (int i = 0; i < 16; i++) pthread_create(&all[i], NULL, first_call, &barrier);
        for (int i = 0; i < 16; i++) { pthread_join(all[i], &status); failed += status != NULL; }
        printf("failed %d\n", failed);
    } else if (!strcmp(mode, "process")) {
        static char before[200000], after[200000];
        fesetround(FE_DOWNWARD);
        snapshot(before, sizeof before);
        int status = eog(NULL);
        snapshot(after, sizeof after);
        printf("status %d %s\n", status, strcmp(before, after) ? after : "same");
    } else if (!strcmp(mode, "interrupt")) {
        eog(NULL);
        kill(getpid(), SIGINT);
        for (;;) eog(NULL);
    } else if (!strcmp(mode, "leave")) {
        eog(NULL);
        pthread_create(&thread, NULL, call_for_ever, NULL);
        usleep(20000);
        if (!strcmp(argument, "return")) return 3;
        pthread_create(&thread, NULL, leave, (void *)argument);
        for (;;) eog(NULL);
    } else if (!strcmp(mode, "speed")) {
        struct timespec a, b;
        calls = atoi(argument);
        eog(NULL);
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int i = 0; i < calls; i++) eog(NULL);
        clock_gettime(CLOCK_MONOTONIC, &b);
        printf("%.1f ns\n", ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / calls);
    } else if (!strcmp(mode, "look-up")) {
        char name[200];
        while (scanf("%199s", name) == 1) look_up(name);
        printf("all\n");
    }
    return 0;
}

int main(int count, char **words)
{
    library = dlopen(words[1], RTLD_LAZY | RTLD_LOCAL);
    if (!library) { printf("%s\n", dlerror()); return 8; }
    return run(words[2], count > 3 ? words[3] : "");
}
"""


def compile_program(source: str, out: Path, *flags: str) -> Path:
    """Compiles C text into the program `out`; the compiler's complaint fails the test."""
    text = out.with_suffix(".c")
    text.write_text(source)
    command = ["gcc", "-std=gnu11", "-Wall", "-D_GNU_SOURCE", "-o", str(out), str(text), *flags,
               "-pthread", "-ldl", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out
