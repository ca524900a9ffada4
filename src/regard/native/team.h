// Threads that go through the stages of a step together.
#pragma once

#include <atomic>
#include <thread>

constexpr long SPINS = 500000;  // some milliseconds

// All threads wait here for the last. A stage takes microseconds, so they spin. They also spin
// while another program has one of the cores: who gives its core away gets it back some milliseconds
// later, and by then the other one will have gone.
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
            if (spins > SPINS) std::this_thread::yield();
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
