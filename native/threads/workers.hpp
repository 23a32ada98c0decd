// Web Workers that share the rows of an image, in memory that all of them see. WebAssembly has no
// threads of its own: the page starts the workers, and each of them calls serve(), which does not
// return. Nothing here allocates, so helpers need no more than a stack.
#pragma once

#include <cstdint>

#include "../core/executor.hpp"

namespace integrodiff {

class Workers final : public Executor {
  public:
    // How many workers help from the next call of share() on. They may arrive later.
    void set_helpers(int helpers) { helpers_ = helpers; }

    Index workers() const override { return static_cast<Index>(helpers_) + 1; }

    void serve(Index worker) {
        for (std::int32_t seen = 0;; ++seen) {
            await_change(&round_, seen);
            take_bands(worker);
            if (__atomic_sub_fetch(&busy_, 1, __ATOMIC_ACQ_REL) == 0)
                __builtin_wasm_memory_atomic_notify(&busy_, 1);
        }
    }

  protected:
    void share(Index count, Index bands, Call call, const void *work) override {
        if (helpers_ == 0 || bands <= 1) {
            call(work, 0, count, 0);
            return;
        }
        call_ = call;
        work_ = work;
        count_ = count;
        bands_ = bands;
        __atomic_store_n(&next_, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&busy_, helpers_, __ATOMIC_RELAXED);
        __atomic_add_fetch(&round_, 1, __ATOMIC_RELEASE);
        __builtin_wasm_memory_atomic_notify(&round_, static_cast<unsigned>(helpers_));
        take_bands(0);
        for (std::int32_t left; (left = __atomic_load_n(&busy_, __ATOMIC_ACQUIRE)) != 0;)
            await_change(&busy_, left);
    }

  private:
    void take_bands(Index worker) {
        for (;;) {
            const Index band = __atomic_fetch_add(&next_, 1, __ATOMIC_RELAXED);
            if (band >= bands_) return;
            // In 64 bits: the product of two numbers of rows may not fit into an Index here.
            const std::int64_t count = count_;
            call_(work_, static_cast<Index>(count * band / bands_),
                  static_cast<Index>(count * (band + 1) / bands_), worker);
        }
    }

    // Return when a number is no longer what it was. Waits awake for some microseconds first: waking
    // up takes longer than most of the work that is shared.
    static void await_change(std::int32_t *number, std::int32_t was) {
        for (int i = 0; i < 4000; ++i)
            if (__atomic_load_n(number, __ATOMIC_ACQUIRE) != was) return;
        while (__atomic_load_n(number, __ATOMIC_ACQUIRE) == was)
            __builtin_wasm_memory_atomic_wait32(number, was, -1);
    }

    std::int32_t helpers_ = 0, round_ = 0, busy_ = 0;
    Index next_ = 0, count_ = 0, bands_ = 0;
    Call call_ = nullptr;
    const void *work_ = nullptr;
};

}  // namespace integrodiff
