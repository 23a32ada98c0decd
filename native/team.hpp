// Threads that share the rows of an image. A team belongs to one plan: no state is global, so
// calls from several threads do not meet, and a process that forks between calls loses nothing.
#pragma once

#include <atomic>
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
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            work_ = &work;
            count_ = count;
            bands_ = bands < count ? bands : count;
            next_ = 0;
            busy_ = threads_ - 1;
            ++round_;
        }
        called_.notify_all();
        take_bands();
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
    }

    void take_bands() {
        for (;;) {
            const std::ptrdiff_t band = next_.fetch_add(1);
            if (band >= bands_) return;
            (*work_)(count_ * band / bands_, count_ * (band + 1) / bands_);
        }
    }

    void serve() {
        long seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            called_.wait(lock, [&] { return ending_ || round_ != seen; });
            if (ending_) return;
            seen = round_;
            lock.unlock();
            take_bands();
            lock.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    const int threads_;
    std::vector<std::thread> helpers_;
    std::mutex mutex_;
    std::condition_variable called_, done_;
    const Rows *work_ = nullptr;
    std::ptrdiff_t count_ = 0, bands_ = 0;
    std::atomic<std::ptrdiff_t> next_{0};
    int busy_ = 0;
    long round_ = 0;
    bool ending_ = false;
};

}  // namespace integrodiff
