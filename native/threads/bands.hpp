// The bands of one piece of work at a time, and the helpers that are at it. The caller takes bands
// too, and waits for helpers that have begun, but not for those that have not: a busy system may let
// one rest for milliseconds, in which the caller has done all of the work itself.
#pragma once

#include <atomic>
#include <cstdint>

#include "../core/executor.hpp"

namespace integrodiff {

class Bands {
  public:
    // The state when nobody is at work.
    static constexpr std::int32_t closed = std::int32_t{1} << 30;

    // The caller offers work; nobody is at work before it, or after close() and finished().
    void open(Index count, Index bands, Executor::Call call, const void *work) {
        call_ = call;
        work_ = work;
        count_ = count;
        bands_ = bands;
        next_.store(0, std::memory_order_relaxed);
        state_.fetch_and(~closed, std::memory_order_release);
    }

    // Take bands until there are no more.
    void take(Index worker) {
        // In 64 bits: the product of two numbers of rows may not fit into an Index everywhere.
        const std::int64_t count = count_;
        for (;;) {
            const Index band = next_.fetch_add(1, std::memory_order_relaxed);
            if (band >= bands_) return;
            call_(work_, static_cast<Index>(count * band / bands_),
                  static_cast<Index>(count * (band + 1) / bands_), worker);
        }
    }

    // A helper takes bands, unless it comes too late. Return whether the caller may wait for it.
    bool help(Index worker) {
        const bool in_time = !(state_.fetch_add(1, std::memory_order_acquire) & closed);
        if (in_time) take(worker);
        return state_.fetch_sub(1, std::memory_order_acq_rel) == (closed | 1);
    }

    // The caller lets no more helpers begin.
    void close() { state_.fetch_or(closed, std::memory_order_acq_rel); }
    bool finished() const { return state_.load(std::memory_order_acquire) == closed; }

    // For WebAssembly, which waits for changes of a number.
    const std::atomic<std::int32_t> &state() const { return state_; }

  private:
    // The number of helpers that have come and not gone; `closed` is added while they come too late.
    std::atomic<std::int32_t> state_{closed};
    std::atomic<Index> next_{0};
    Executor::Call call_ = nullptr;
    const void *work_ = nullptr;
    Index count_ = 0, bands_ = 0;
};

}  // namespace integrodiff
