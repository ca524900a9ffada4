// Threads that go through the stages of a step together.
//
// A stage is so many pieces of work. It is over when its pieces are done, not when all threads are
// there: if another program takes a core away, the thread that is left does the work of both, and
// the other one catches up. Waiting for each other behind every stage would cost a slice of the
// scheduler's time each: milliseconds, where a stage takes microseconds. A thread that waits long
// for a piece yields its core, because the thread with that piece may be waiting for a core.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

struct alignas(64) Counter {  // each has a cache line to itself
    std::atomic<long> value{0};
};

constexpr long SPINS = 2000;  // about ten microseconds

struct Team {
    std::vector<Counter>& counters;  // of each stage: pieces done, then pieces taken of each share
    long id, count, stage = 0;

    static long counters_for(long stages, long threads) { return stages * (threads + 1); }

    // work(i) for all i below `pieces`, by whichever thread comes first. Each begins with its own
    // share, which lies in its caches if it had the same in the step before.
    template <class F> void each(long pieces, const F& work) {
        if (count == 1) {
            for (long i = 0; i < pieces; i++) work(i);
            return;
        }
        Counter* here = &counters[stage++ * (count + 1)];
        std::atomic<long>& done = here->value;
        long mine = 0;
        for (long k = 0; k < count; k++) {
            long share = (id + k) % count, last = pieces * (share + 1) / count, i;
            long first = pieces * share / count;
            std::atomic<long>& taken = here[1 + share].value;
            if (taken.load(std::memory_order_relaxed) >= last - first) continue;
            while ((i = first + taken.fetch_add(1, std::memory_order_relaxed)) < last) {
                work(i);
                mine++;
            }
        }
        if (mine) done.fetch_add(mine, std::memory_order_acq_rel);
        for (long spins = 0; done.load(std::memory_order_acquire) < pieces; spins++) {
            if (spins >= SPINS) std::this_thread::yield();
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    }
};
