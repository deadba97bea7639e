/*
 * phase_arena.c - blocks of a stage, what is dry about it, and what does not fit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/phase_arena.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/ops.h"

enum { UNIT = INVAR_ALIGN };

static void *taken(invar_phase_arena *s, size_t bytes)
{
    void *block = invar_test_take(&s->dev, bytes, "a block");

    assert_int_equal((uintptr_t)block % INVAR_ALIGN, 0);
    return block;
}

static size_t at(const invar_phase_arena *s, const void *block)
{
    return (size_t)((const char *)block - s->base);
}

static void test_stage__counts_without_memory(void **state)
{
    const invar_device cpu = {.backend = invar_backend_cpu()};
    static invar_phase_arena s, other;
    char bytes[3] = {1, 2, 3};
    void *a, *b, *c;

    (void)state;
    invar_phase_arena_init(&s, &cpu, 0);
    invar_phase_arena_init(&other, &cpu, 1);
    a = taken(&s, 1);
    b = taken(&s, (size_t)1 << 40); // nobody has that much
    assert_int_equal(s.allocated_bytes, UNIT + ((size_t)1 << 40));
    assert_true(taken(&other, 1) != a);
    invar_device_free(&s.dev, a);
    c = taken(&s, 0); // the first gap, and never nothing
    assert_ptr_equal(c, a);
    invar_device_free(&s.dev, b);
    invar_phase_arena_mark(&s);
    assert_int_equal(s.peak_bytes, UNIT);
    assert_int_equal(s.high_water, UNIT + ((size_t)1 << 40));
    // copies do nothing, and the host reads zeros
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

/* Two stages of one piece give the same addresses; what does not fit lies elsewhere. */
static void test_stage__two_have_one_piece(void **state)
{
    const invar_device cpu = {.backend = invar_backend_cpu()};
    static invar_phase_arena s[2];
    void *piece = NULL, *first[2], *beyond;

    (void)state;
    assert_ok(invar_alloc(&piece, 4 * UNIT, 1, "a piece"));
    for (int i = 0; i < 2; i++) {
        invar_phase_arena_init(&s[i], &cpu, i);
        invar_phase_arena_bind(&s[i], piece, 4 * UNIT);
        first[i] = taken(&s[i], 3 * UNIT);
        assert_ptr_equal(first[i], piece);
        invar_phase_arena_activate(&s[i]);
        assert_false(s[i].dev.backend->memory.dry_run);
        assert_true(s[i].dev.backend->memory.exact_size);
    }
    assert_int_equal(at(&s[0], taken(&s[0], UNIT)), 3 * UNIT);
    beyond = taken(&s[0], UNIT);
    assert_true((char *)beyond < (char *)piece || (char *)beyond >= (char *)piece + 4 * UNIT);
    memset(beyond, 1, UNIT); // memory of its own
    invar_device_free(&s[0].dev, beyond);
    assert_int_equal(s[0].high_water, 4 * UNIT);
    invar_free(piece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stage__counts_without_memory),
        cmocka_unit_test(test_stage__two_have_one_piece),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
