"""Owns the hand-written C of the engine library that counts threads inside calls and ends calmly.

The host leaves without unloading us, often while another thread is inside a call. `exit` then runs
the destructors of native libraries that Python loaded, and a thread inside numpy's BLAS crashes
the process (KNOWLEDGE/pitfalls/blas-destructor-crashes-a-busy-thread.md). `generate.py` puts this
behind `startup.py`, whose start registers `ms_leave`, and before the exports, which use
`ms_enter` and `ms_left`.
"""

LEAVE_C = r"""
#include <unistd.h>

#define MS_LEAVE_MS 1000
#define MS_LAST_STEP_MS 200

static int ms_inside = 0;
static __thread int ms_mine = 0, ms_is_leaver = 0;

static int ms_alive(void)
{
    int state = __atomic_load_n(&ms_state, __ATOMIC_ACQUIRE);
    if (state == MS_COLD)
        state = ms_start_once();
    return state == MS_ALIVE && Py_IsInitialized();
}

static void ms_left(void)
{
    ms_mine--;
    __atomic_sub_fetch(&ms_inside, 1, __ATOMIC_SEQ_CST);
}

/* Whether a call may go to Python. The thread that leaves still may: the host has handlers, too. */
static int ms_enter(void)
{
    if (!ms_alive())
        return 0;
    ms_mine++;
    __atomic_add_fetch(&ms_inside, 1, __ATOMIC_SEQ_CST);
    if (ms_mine > 1 || ms_is_leaver || !__atomic_load_n(&ms_leaving, __ATOMIC_SEQ_CST))
        return 1;
    ms_left();
    return 0;
}

/* Runs in `exit`, before any destructor: lets no other thread in and waits for those inside. One
 * that takes long is stopped between two steps: its Python needs the lock that is never given
 * back, and no single native step takes that long. */
static void ms_leave(void)
{
    ms_is_leaver = 1;
    __atomic_store_n(&ms_leaving, 1, __ATOMIC_SEQ_CST);
    for (int ms = 0; ms < MS_LEAVE_MS; ms++) {
        if (__atomic_load_n(&ms_inside, __ATOMIC_SEQ_CST) == ms_mine)
            return;
        usleep(1000);
    }
    if (Py_IsInitialized()) {
        PyGILState_Ensure();
        usleep(MS_LAST_STEP_MS * 1000);
    }
}
"""
