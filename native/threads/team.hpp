// Threads that share the rows of an image. A team belongs to one run: no state is global, so calls
// from several threads do not meet, and a process that forks between runs loses nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "../core/executor.hpp"
#include "../core/subnormals.hpp"
#include "bands.hpp"

namespace integrodiff {

class Team final : public Executor {
  public:
    // At most `threads`, the calling one included: the system may not allow as many.
    explicit Team(int threads) {
        helpers_.reserve(threads - 1);
        try {
            for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { serve(i); });
        } catch (const std::system_error &) {
        }
    }

    ~Team() override {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            ending_ = true;
        }
        called_.notify_all();
        for (std::thread &helper : helpers_) helper.join();
    }

    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    Index workers() const override { return static_cast<Index>(helpers_.size()) + 1; }

  protected:
    void share(Index count, Index bands, Call call, const void *work) override {
        if (helpers_.empty() || bands <= 1) {
            call(work, 0, count, 0);
            return;
        }
        bands_.open(count, bands, call, work);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            round_.fetch_add(1, std::memory_order_release);
        }
        called_.notify_all();
        bands_.take(0);
        bands_.close();
        const auto finished = [this] { return bands_.finished(); };
        if (soon(finished)) return;
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, finished);
    }

  private:
    // Helpers sleep before the first round, and whenever another thread had their processor while
    // they waited. The system wakes a thread where a processor is free, but it leaves one that is
    // awake behind another for many milliseconds, while a processor is idle.
    void serve(Index worker) {
        const FlushSubnormals flush;
        for (long seen = 0;;) {
            const auto called = [&] {
                return ending_.load(std::memory_order_acquire) ||
                       round_.load(std::memory_order_acquire) != seen;
            };
            if (seen == 0 || !soon(called)) {
                std::unique_lock<std::mutex> lock(mutex_);
                seen = round_.load(std::memory_order_acquire);  // a round that has begun is missed
                called_.wait(lock, called);
            }
            if (ending_.load(std::memory_order_acquire)) return;
            seen = round_.load(std::memory_order_acquire);
            if (bands_.help(worker)) {
                // The lock: not between the look and the sleep of the one that waits.
                const std::lock_guard<std::mutex> lock(mutex_);
                done_.notify_one();
            }
        }
    }

    // Whether something comes true while one can wait for it without going to sleep, since waking up
    // takes longer than most of the work that is shared, and before another thread takes the processor.
    template <class Condition>
    static bool soon(const Condition &condition) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point end = Clock::now() + std::chrono::microseconds(100);
        for (Clock::time_point now, before; (now = Clock::now()) < end;) {
            for (int i = 0; i < 32; ++i)
                if (condition()) return true;
            before = Clock::now();
            std::this_thread::yield();
            if (Clock::now() - before > std::chrono::microseconds(20)) return false;
        }
        return false;
    }

    std::mutex mutex_;
    std::condition_variable called_, done_;
    Bands bands_;
    std::atomic<long> round_{0};
    std::atomic<bool> ending_{false};
    std::vector<std::thread> helpers_;  // last: they use everything above
};

}  // namespace integrodiff
