/*
 * phase_arena.c - tests of phase arenas: counting without memory, and two arenas over one block.
 *
 * A counting arena must allow allocations that no machine has, and its copies must have no effect.
 * Bound arenas must hand out addresses in their block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/phase_arena.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/ops.h"

enum { UNIT = INVAR_ALIGN };

static void *alloc_block(invar_phase_arena *s, size_t bytes)
{
    void *block = invar_test_device_alloc(&s->dev, bytes, "a block");

    assert_int_equal((uintptr_t)block % INVAR_ALIGN, 0);
    return block;
}

static size_t offset_of(const invar_phase_arena *s, const void *block)
{
    return (size_t)((const char *)block - s->base);
}

static void test_phase_arena__counts_without_memory(void **state)
{
    const invar_device cpu = {.backend = invar_backend_cpu()};
    static invar_phase_arena s, other;
    char bytes[3] = {1, 2, 3};
    void *a, *b, *c;

    (void)state;
    invar_phase_arena_init(&s, &cpu, 0);
    invar_phase_arena_init(&other, &cpu, 1);
    a = alloc_block(&s, 1);
    b = alloc_block(&s, (size_t)1 << 40); // more than any memory: nothing is allocated yet
    assert_int_equal(s.allocated_bytes, UNIT + ((size_t)1 << 40));
    assert_true(alloc_block(&other, 1) != a);
    invar_device_free(&s.dev, a);
    c = alloc_block(&s, 0); // first fit; 0 bytes count as one
    assert_ptr_equal(c, a);
    invar_device_free(&s.dev, b);
    invar_phase_arena_mark(&s);
    assert_int_equal(s.peak_bytes, UNIT);
    assert_int_equal(s.high_water, UNIT + ((size_t)1 << 40));
    // copies have no effect, and downloads give zeros
    assert_ok(invar_device_upload(&s.dev, c, bytes, sizeof bytes));
    assert_ok(invar_device_copy(&s.dev, c, b, 1));
    assert_ok(invar_device_zero(&s.dev, c, 1));
    assert_ok(invar_device_download(&s.dev, bytes, c, sizeof bytes));
    assert_memory_equal(bytes, "\0\0\0", 3);
    assert_ok(invar_device_alloc_host(&s.dev, &a, 77, "of the host"));
    assert_int_equal(s.host, 77);
    assert_fails(invar_device_alloc(&s.dev, &a, (size_t)1 << 62, "the world"), INVAR_E_NOMEM,
                 "the world");
    invar_device_free(&s.dev, NULL);
}

/*
 * Two phase arenas over one block have the same addresses. An allocation that does not fit into the
 * block gets memory of its own.
 */
static void test_phase_arena__two_share_a_block(void **state)
{
    const invar_device cpu = {.backend = invar_backend_cpu()};
    static invar_phase_arena s[2];
    void *memory = NULL, *first[2], *outside;

    (void)state;
    assert_ok(invar_alloc(&memory, 4 * UNIT, 1, "a piece"));
    for (int i = 0; i < 2; i++) {
        invar_phase_arena_init(&s[i], &cpu, i);
        invar_phase_arena_bind(&s[i], memory, 4 * UNIT);
        first[i] = alloc_block(&s[i], 3 * UNIT);
        assert_ptr_equal(first[i], memory);
        invar_phase_arena_activate(&s[i]);
        assert_false(s[i].dev.backend->memory.dry_run);
        assert_true(s[i].dev.backend->memory.exact_size);
    }
    assert_int_equal(offset_of(&s[0], alloc_block(&s[0], UNIT)), 3 * UNIT);
    outside = alloc_block(&s[0], UNIT);
    assert_true((char *)outside < (char *)memory || (char *)outside >= (char *)memory + 4 * UNIT);
    memset(outside, 1, UNIT); // real memory, outside of the block
    invar_device_free(&s[0].dev, outside);
    assert_int_equal(s[0].high_water, 4 * UNIT);
    invar_free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phase_arena__counts_without_memory),
        cmocka_unit_test(test_phase_arena__two_share_a_block),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
