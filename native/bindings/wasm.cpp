// The thin layer between JavaScript and the steps, for the page in the browser: exact evaluation in
// single precision. JavaScript writes the numbers of a process into memory as page/core/engine.js
// lays them out, and has checked them. Running out of memory ends the instance.

#define INTEGRODIFF_ISA baseline
#include "../steps/exact.cpp"
#include "wasm_runtime.hpp"

#ifdef __wasm_atomics__
#include "../threads/workers.hpp"
#endif

using namespace integrodiff;

namespace {

#ifdef __wasm_atomics__
Workers team;
#else
Serial team;
#endif

// Reads the numbers of a process one after the other.
class Numbers {
  public:
    explicit Numbers(const double *numbers) : next_(numbers) {}
    double one() { return *next_++; }
    int whole() { return static_cast<int>(one()); }
    std::vector<double> list(int count) {
        const std::vector<double> found(next_, next_ + count);
        next_ += count;
        return found;
    }
    // Preceded by its length.
    std::vector<double> list() { return list(whole()); }

  private:
    const double *next_;
};

Term term_from(Numbers &numbers, int scales) {
    Term term;
    term.order = numbers.whole();
    term.tensor = numbers.whole() != 0;
    term.mix = numbers.one();
    term.coupling_weights = numbers.list(scales);
    term.flux_weights = numbers.list(scales);
    term.contrasts = numbers.list(scales);
    term.integration = numbers.list();
    return term;
}

// An image on its way, with everything that its run refers to.
struct Job {
    ExactProcess process{};
    Schedule schedule;
    std::unique_ptr<Run<float>> run;
};

// That of the run before, which is over.
Buffer<float> memory;

}  // namespace

#define INTEGRODIFF_EXPORT(name) extern "C" __attribute__((export_name(name)))

INTEGRODIFF_EXPORT("take") void *take(std::size_t bytes) {
    return ::operator new(bytes, LineAllocator<float>::line);
}

INTEGRODIFF_EXPORT("give_back") void give_back(void *block) {
    ::operator delete(block, LineAllocator<float>::line);
}

INTEGRODIFF_EXPORT("begin")
Job *begin(const double *description, const float *image, int channels, int height, int width) {
    Numbers numbers(description);
    Job *job = new Job;
    job->process.theta = numbers.one();
    job->process.cells = numbers.whole() != 0;
    const double tau = numbers.one();
    const std::vector<double> pulls = numbers.list();
    const int scales = numbers.whole();
    for (int i = 0; i < scales; ++i) job->process.taps.push_back(numbers.list());
    for (int entries = numbers.whole(); entries > 0; --entries) {
        std::vector<Term> terms;
        for (int count = numbers.whole(); count > 0; --count)
            terms.push_back(term_from(numbers, scales));
        job->schedule.push_back(terms);
    }
    const Start<float> start{{channels, height, width}, image, &job->schedule, tau, pulls, {}, &team,
                             &memory};
    job->run = INTEGRODIFF_ISA::exact_run<float>(job->process, start);
    return job;
}

INTEGRODIFF_EXPORT("advance") void advance(Job *job, int step) {
    job->run->advance(static_cast<std::size_t>(step));
}

INTEGRODIFF_EXPORT("read") void read(const Job *job, float *out) { job->run->read(out); }

INTEGRODIFF_EXPORT("finish") void finish(Job *job) { delete job; }

#ifdef __wasm_atomics__
INTEGRODIFF_EXPORT("set_helpers") void set_helpers(int helpers) { team.set_helpers(helpers); }

INTEGRODIFF_EXPORT("serve") void serve(int worker) { team.serve(worker); }
#endif
