// What the steps need of a C++ runtime, for WebAssembly without a system below it: memory, and the
// end. Only one worker allocates; helpers never do. Nothing else is linked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace integrodiff {

// Blocks from the end of the program to the end of memory, which grows when none is large enough.
class Heap {
  public:
    void *take(std::size_t bytes) {
        const std::size_t size = (bytes + 2 * line - 1) / line * line;  // with the header
        for (Block **place = &free_; *place; place = &(*place)->next) {
            Block *block = *place;
            if (block->size < size) continue;
            if (block->size > size) {
                Block *rest = at(block, size);
                *rest = {block->size - size, block->next};
                *place = rest;
                block->size = size;
            } else {
                *place = block->next;
            }
            return at(block, line);
        }
        grow(size);
        return take(bytes);
    }

    void give_back(void *address) {
        if (address) insert(reinterpret_cast<Block *>(static_cast<char *>(address) - line));
    }

  private:
    static constexpr std::size_t line = 64, page = 65536;

    // The header of a block takes a line of its own, so that what follows begins at a line.
    struct Block {
        std::size_t size;
        Block *next;
    };

    static Block *at(Block *block, std::size_t offset) {
        return reinterpret_cast<Block *>(reinterpret_cast<char *>(block) + offset);
    }

    void grow(std::size_t size) {
        const std::size_t pages = (size + page - 1) / page + 1;
        const std::size_t before = __builtin_wasm_memory_grow(0, pages);
        if (before == static_cast<std::size_t>(-1)) __builtin_trap();
        Block *block = reinterpret_cast<Block *>(before * page);
        block->size = pages * page;
        insert(block);
    }

    // Blocks are sorted by their address, and neighbours are joined.
    void insert(Block *block) {
        Block **place = &free_, *before = nullptr;
        while (*place && *place < block) {
            before = *place;
            place = &before->next;
        }
        block->next = *place;
        *place = block;
        if (block->next == at(block, block->size)) {
            block->size += block->next->size;
            block->next = block->next->next;
        }
        if (before && at(before, before->size) == block) {
            before->size += block->size;
            before->next = block->next;
        }
    }

    Block *free_ = nullptr;
};

inline Heap heap;

}  // namespace integrodiff

void *operator new(std::size_t bytes) { return integrodiff::heap.take(bytes); }
void *operator new(std::size_t bytes, std::align_val_t) { return integrodiff::heap.take(bytes); }
void operator delete(void *block) noexcept { integrodiff::heap.give_back(block); }
void operator delete(void *block, std::size_t) noexcept { integrodiff::heap.give_back(block); }
void operator delete(void *block, std::align_val_t) noexcept { integrodiff::heap.give_back(block); }
void operator delete(void *block, std::size_t, std::align_val_t) noexcept {
    integrodiff::heap.give_back(block);
}

extern "C" {
void abort() { __builtin_trap(); }
void __cxa_pure_virtual() { __builtin_trap(); }
// Nothing lives on after the page.
int __cxa_atexit(void (*)(void *), void *, void *) { return 0; }
void *__dso_handle = nullptr;
}

// Where the standard library would throw, or print a message before the end.
_LIBCPP_BEGIN_NAMESPACE_STD
[[noreturn]] void __libcpp_verbose_abort(char const *, ...) noexcept { __builtin_trap(); }
_LIBCPP_END_NAMESPACE_STD
