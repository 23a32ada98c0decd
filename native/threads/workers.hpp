// Web Workers that share the rows of an image, in memory that all of them see. WebAssembly has no
// threads of its own: the page starts the workers, and each of them calls serve(), which does not
// return. Nothing here allocates, so helpers need no more than a stack.
#pragma once

#include <atomic>
#include <cstdint>

#include "../core/executor.hpp"
#include "bands.hpp"

namespace integrodiff {

class Workers final : public Executor {
  public:
    // How many workers help from the next call of share() on. They may arrive later.
    void set_helpers(int helpers) { helpers_ = helpers; }

    Index workers() const override { return static_cast<Index>(helpers_) + 1; }

    void serve(Index worker) {
        for (std::int32_t seen = 0;;) {
            await_change(round_, seen);
            seen = round_.load(std::memory_order_acquire);
            if (bands_.help(worker)) notify(bands_.state(), 1);
        }
    }

  protected:
    void share(Index count, Index bands, Call call, const void *work) override {
        if (helpers_ == 0 || bands <= 1) {
            call(work, 0, count, 0);
            return;
        }
        bands_.open(count, bands, call, work);
        round_.fetch_add(1, std::memory_order_release);
        notify(round_, static_cast<unsigned>(helpers_));
        bands_.take(0);
        bands_.close();
        for (std::int32_t left; (left = bands_.state().load(std::memory_order_acquire)) != Bands::closed;)
            await_change(bands_.state(), left);
    }

  private:
    using Number = std::atomic<std::int32_t>;

    static std::int32_t *address(const Number &number) {
        static_assert(sizeof(Number) == sizeof(std::int32_t));
        return reinterpret_cast<std::int32_t *>(const_cast<Number *>(&number));
    }

    static void notify(const Number &number, unsigned most) {
        __builtin_wasm_memory_atomic_notify(address(number), most);
    }

    // Return when a number is no longer what it was. Waits awake for some microseconds first: waking
    // up takes longer than most of the work that is shared.
    static void await_change(const Number &number, std::int32_t was) {
        for (int i = 0; i < 4000; ++i)
            if (number.load(std::memory_order_acquire) != was) return;
        while (number.load(std::memory_order_acquire) == was)
            __builtin_wasm_memory_atomic_wait32(address(number), was, -1);
    }

    int helpers_ = 0;
    Number round_{0};
    Bands bands_;
};

}  // namespace integrodiff
