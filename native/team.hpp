// Threads that share the rows of an image. A team belongs to one plan: no state is global, so
// calls from several threads do not meet, and a process that forks between calls loses nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace integrodiff {

class Team {
  public:
    using Rows = std::function<void(std::ptrdiff_t first, std::ptrdiff_t last)>;

    explicit Team(int threads) : threads_(threads) {
        for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { serve(); });
    }

    ~Team() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            ending_ = true;
        }
        called_.notify_all();
        for (std::thread &helper : helpers_) helper.join();
    }

    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    std::ptrdiff_t size() const { return threads_; }

    // Call `work` for each number from 0 to `count`.
    void pieces(std::ptrdiff_t count, const std::function<void(std::ptrdiff_t)> &work) {
        share(count, count, [&](std::ptrdiff_t first, std::ptrdiff_t last) {
            for (; first < last; ++first) work(first);
        });
    }

    // Call `work` for bands that together are the rows from 0 to `count`.
    void rows(std::ptrdiff_t count, const Rows &work) {
        // More bands than threads: whoever is held up takes fewer.
        share(count, count < 2 * threads_ ? 1 : 4 * threads_, work);
    }

  private:
    void share(std::ptrdiff_t count, std::ptrdiff_t bands, const Rows &work) {
        if (threads_ == 1 || bands <= 1) {
            work(0, count);
            return;
        }
        work_ = &work;
        count_ = count;
        bands_ = bands < count ? bands : count;
        next_.store(0, std::memory_order_relaxed);
        busy_.store(threads_ - 1, std::memory_order_relaxed);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            round_.fetch_add(1, std::memory_order_release);
        }
        called_.notify_all();
        take_bands();
        const auto finished = [this] { return busy_.load(std::memory_order_acquire) == 0; };
        if (soon(finished)) return;
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, finished);
    }

    void take_bands() {
        for (;;) {
            const std::ptrdiff_t band = next_.fetch_add(1, std::memory_order_relaxed);
            if (band >= bands_) return;
            (*work_)(count_ * band / bands_, count_ * (band + 1) / bands_);
        }
    }

    void serve() {
        for (long seen = 0;;) {
            const auto called = [&] {
                return ending_.load(std::memory_order_acquire) ||
                       round_.load(std::memory_order_acquire) != seen;
            };
            if (!soon(called)) {
                std::unique_lock<std::mutex> lock(mutex_);
                called_.wait(lock, called);
            }
            if (ending_.load(std::memory_order_acquire)) return;
            ++seen;
            take_bands();
            if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                // The lock: not between the look and the sleep of the one that waits.
                const std::lock_guard<std::mutex> lock(mutex_);
                done_.notify_one();
            }
        }
    }

    // Whether something comes true while one can wait for it without going to sleep: waking up takes
    // longer than most of the work that is shared.
    template <class Condition>
    static bool soon(const Condition &condition) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point end = Clock::now() + std::chrono::microseconds(100);
        do {
            for (int i = 0; i < 32; ++i)
                if (condition()) return true;
            std::this_thread::yield();
        } while (Clock::now() < end);
        return false;
    }

    const int threads_;
    std::vector<std::thread> helpers_;
    std::mutex mutex_;
    std::condition_variable called_, done_;
    const Rows *work_ = nullptr;
    std::ptrdiff_t count_ = 0, bands_ = 0;
    std::atomic<std::ptrdiff_t> next_{0};
    std::atomic<int> busy_{0};
    std::atomic<long> round_{0};
    std::atomic<bool> ending_{false};
};

}  // namespace integrodiff
