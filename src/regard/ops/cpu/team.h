// Threads that run the stages of a step together.
//
// A stage consists of pieces of work and ends when all pieces are done, without a barrier for the
// threads: if another program takes a core, the other threads do the work of its thread, which
// continues with a later stage. A barrier after each stage could wait for a time slice of the
// scheduler: milliseconds, where a stage takes microseconds. A thread that waits long for a piece
// yields its core, because the thread with that piece may be waiting for a core.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

struct alignas(64) Counter {  // one cache line for each counter
    std::atomic<long> value{0};
};

constexpr long SPINS = 2000;  // about ten microseconds

struct Team {
    std::vector<Counter>& counters;  // of each stage: pieces done, then claimed of each share
    long id, count, stage = 0;

    static long counters_for(long stages, long threads) { return stages * (threads + 1); }

    // Calls work(i) for all i below `pieces`. Each thread begins with its share, which is in its
    // cache if it had the same share in the previous step, and then helps with the others.
    template <class F> void each(long pieces, const F& work) {
        if (count == 1) {
            for (long i = 0; i < pieces; i++) work(i);
            return;
        }
        Counter* stage_counters = &counters[stage++ * (count + 1)];
        std::atomic<long>& done = stage_counters->value;
        long processed = 0;
        for (long k = 0; k < count; k++) {
            long share = (id + k) % count, last = pieces * (share + 1) / count, i;
            long first = pieces * share / count;
            std::atomic<long>& claimed = stage_counters[1 + share].value;
            if (claimed.load(std::memory_order_relaxed) >= last - first) continue;
            while ((i = first + claimed.fetch_add(1, std::memory_order_relaxed)) < last) {
                work(i);
                processed++;
            }
        }
        if (processed) done.fetch_add(processed, std::memory_order_acq_rel);
        for (long spins = 0; done.load(std::memory_order_acquire) < pieces; spins++) {
            if (spins >= SPINS) std::this_thread::yield();
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    }
};
