// Threads that go through the stages of a step together.
#pragma once

#include <atomic>
#include <thread>

// All threads wait here for the last. A stage takes microseconds: they spin, and only if a thread
// seems to have lost its core do they give way.
struct Barrier {
    std::atomic<long> here{0}, round{0};

    void wait(long count) {
        long now = round.load(std::memory_order_relaxed);
        if (here.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
            here.store(0, std::memory_order_relaxed);
            round.store(now + 1, std::memory_order_release);
            return;
        }
        for (long spins = 0; round.load(std::memory_order_acquire) == now; spins++) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            if (spins > 20000) std::this_thread::yield();
        }
    }
};

struct Team {
    Barrier* barrier;
    long id, count;

    void wait() {
        if (count > 1) barrier->wait(count);
    }
    // Which of `work` pieces are this thread's.
    long first(long work) const { return work * id / count; }
    long last(long work) const { return work * (id + 1) / count; }
};
