// How steps are shared among threads, without knowing any: WebAssembly has none.
#pragma once

#include "types.hpp"

namespace integrodiff {

// Runs work on rows. The work allocates nothing and throws nothing: it is compiled without
// exceptions for WebAssembly, and an exception in a helper thread would end the process.
class Executor {
  public:
    // One band of some work.
    using Call = void (*)(const void *work, Index first, Index last, Index worker);

    virtual ~Executor() = default;

    // Number of threads that may work at the same time.
    virtual Index workers() const = 0;

    // Call `work(first, last, worker)` for bands that together are the rows from 0 to `count`.
    // Two calls with the same `worker`, which is below workers(), never overlap in time.
    template <class Work>
    void rows(Index count, const Work &work) {
        // More bands than threads: a thread that is held up takes fewer.
        const Index bands = count < 2 * workers() ? 1 : 4 * workers();
        share(count, bands < count ? bands : count, &call<Work>, &work);
    }

    // Call `work(piece, worker)` for each number from 0 to `count`.
    template <class Work>
    void pieces(Index count, const Work &work) {
        const auto each = [&](Index first, Index last, Index worker) {
            for (; first < last; ++first) work(first, worker);
        };
        share(count, count, &call<decltype(each)>, &each);
    }

  protected:
    virtual void share(Index count, Index bands, Call call, const void *work) = 0;

  private:
    template <class Work>
    static void call(const void *work, Index first, Index last, Index worker) {
        (*static_cast<const Work *>(work))(first, last, worker);
    }
};

// All work on the calling thread.
class Serial final : public Executor {
  public:
    Index workers() const override { return 1; }

  protected:
    void share(Index count, Index, Call call, const void *work) override {
        call(work, 0, count, 0);
    }
};

}  // namespace integrodiff
