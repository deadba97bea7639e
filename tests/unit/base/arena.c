/*
 * arena.c - tests of the arena and its debug variant. Most run on both.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/support.h"

#if defined(__SANITIZE_ADDRESS__)
#define INVAR_TEST_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define INVAR_TEST_ASAN
#endif
#endif
#ifdef INVAR_TEST_ASAN
#include <sanitizer/asan_interface.h>
#endif

typedef invar_status (*arena_new)(invar_arena **out, const char *name);

static const arena_new arena_variants[2] = {invar_arena_new, invar_arena_new_debug};

typedef void (*arena_case)(invar_arena *arena);

static void with_both_variants(arena_case run)
{
    for (int i = 0; i < 2; i++) {
        invar_arena *arena;
        assert_ok(arena_variants[i](&arena, "step"));
        run(arena);
        invar_arena_free(arena);
    }
}

static void *push_block(invar_arena *arena, size_t bytes)
{
    void *block;

    assert_ok(invar_arena_push(&block, arena, bytes, "scratch"));
    return block;
}

/* ---- layout ---------------------------------------------------------------------------------- */

static void pushes_hold_their_bytes(invar_arena *arena)
{
    unsigned char *blocks[100];

    // more blocks than the first capacity of the debug arena's list; some are empty
    assert_ok(invar_arena_plan_scratch(arena, 100 * 1024));
    assert_ok(invar_arena_reserve(arena));
    for (int i = 0; i < 100; i++) {
        blocks[i] = push_block(arena, (size_t)(i * 17 % 900));
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % INVAR_ALIGN, 0);
        memset(blocks[i], i, (size_t)(i * 17 % 900));
    }
    for (int i = 0; i < 100; i++)
        for (int j = 0; j < i * 17 % 900; j++)
            assert_int_equal(blocks[i][j], i);
}

static void test_base_arena__pushes_are_aligned_and_do_not_overlap(void **state)
{
    (void)state;
    with_both_variants(pushes_hold_their_bytes);
}

static void plan_is_the_largest(invar_arena *arena)
{
    assert_ok(invar_arena_plan_scratch(arena, 300));
    assert_ok(invar_arena_plan_scratch(arena, 100));
    assert_int_equal(invar_arena_bytes(arena), 512);
}

static void test_base_arena__plan_is_the_largest(void **state)
{
    (void)state;
    with_both_variants(plan_is_the_largest);
}

static void empty_arena(invar_arena *arena)
{
    void *block;

    assert_int_equal(invar_arena_bytes(arena), 0);
    assert_ok(invar_arena_reserve(arena));
    assert_ok(invar_arena_push(&block, arena, 0, "nothing"));
    assert_non_null(block);
}

static void test_base_arena__may_be_empty(void **state)
{
    (void)state;
    with_both_variants(empty_arena);
    invar_arena_free(NULL);
}

/* ---- scratch --------------------------------------------------------------------------------- */

static void scratch_is_a_stack(invar_arena *arena)
{
    size_t mark;
    char *a;

    assert_ok(invar_arena_plan_scratch(arena, 1024));
    assert_ok(invar_arena_reserve(arena));
    for (int step = 0; step < 3; step++) {
        assert_int_equal(invar_arena_mark(arena), 0);
        a = push_block(arena, 512);
        memset(a, 7, 512);
        mark = invar_arena_mark(arena);
        for (int i = 0; i < 3; i++) {
            memset(push_block(arena, 200), 1, 200);
            memset(push_block(arena, 256), 2, 256);
            assert_ok(invar_arena_rewind(arena, mark));
        }
        assert_ok(invar_arena_rewind(arena, mark)); // rewinding to the present mark is permitted
        for (int i = 0; i < 512; i++)
            assert_int_equal(a[i], 7);
        assert_ok(invar_arena_rewind(arena, 0));
    }
}

static void test_base_arena__scratch_is_a_stack(void **state)
{
    (void)state;
    with_both_variants(scratch_is_a_stack);
}

static void test_base_arena__release_scratch_repeats_addresses(void **state)
{
    invar_arena *arena;
    void *a, *b;

    (void)state;
    assert_ok(invar_arena_new(&arena, "step"));
    assert_ok(invar_arena_plan_scratch(arena, 1024));
    assert_ok(invar_arena_reserve(arena));
    a = push_block(arena, 100);
    b = push_block(arena, 100);
    assert_int_equal((char *)b - (char *)a, 256);
    assert_ok(invar_arena_rewind(arena, 0));
    assert_ptr_equal(push_block(arena, 100), a);
    invar_arena_free(arena);
}

/* ---- calls of the allocator ------------------------------------------------------------------ */

typedef struct watching_allocator {
    int allocs;
    int frees;
    const void *wanted;     /* the block whose content is copied when it is freed */
    unsigned char last[64]; /* first bytes of that block at that time */
} watching_allocator;

static void *watch_alloc(size_t bytes, void *payload)
{
    watching_allocator *w = payload;
    void *block = NULL;

    w->allocs++;
    return posix_memalign(&block, INVAR_ALIGN, bytes) == 0 ? block : NULL;
}

static void watch_free(void *block, void *payload)
{
    watching_allocator *w = payload;

    w->frees++;
    if (block == w->wanted)
        memcpy(w->last, block, sizeof w->last);
    free(block);
}

static void test_base_arena__reserve_allocates_once(void **state)
{
    watching_allocator w = {0};
    invar_allocator allocator = {watch_alloc, watch_free, &w};
    invar_arena *arena;
    int before;

    (void)state;
    invar_allocator_set(&allocator);
    assert_ok(invar_arena_new(&arena, "host"));
    assert_ok(invar_arena_plan_scratch(arena, 5000));
    before = w.allocs;
    assert_ok(invar_arena_reserve(arena));
    assert_int_equal(w.allocs, before + 1);
    for (int i = 0; i < 10; i++) {
        push_block(arena, 1000);
        assert_ok(invar_arena_rewind(arena, 0));
    }
    assert_int_equal(w.allocs, before + 1);
    invar_arena_free(arena);
    assert_int_equal(w.allocs, w.frees);
    invar_allocator_set(NULL);
}

static void assert_all_ff(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(bytes[i], 0xFF);
}

static void test_base_arena__debug_variant_fills_with_nan(void **state)
{
    watching_allocator w = {0};
    invar_allocator allocator = {watch_alloc, watch_free, &w};
    invar_arena *arena;
    unsigned char *block;
    int before;

    (void)state;
    invar_allocator_set(&allocator);
    assert_ok(invar_arena_new_debug(&arena, "step"));
    assert_ok(invar_arena_plan_scratch(arena, 4096));
    before = w.allocs;
    assert_ok(invar_arena_reserve(arena));
    assert_int_equal(w.allocs, before); // one block per push
    block = push_block(arena, sizeof w.last);
    assert_all_ff(block, sizeof w.last);
    memset(block, 0, sizeof w.last);
    w.wanted = block;
    assert_ok(invar_arena_rewind(arena, 0));
    assert_all_ff(w.last, sizeof w.last);
    push_block(arena, 100); // freed together with the arena
    invar_arena_free(arena);
    assert_int_equal(w.allocs, w.frees);
    invar_allocator_set(NULL);
}

#ifdef INVAR_TEST_ASAN
static void test_base_arena__sanitizer_sees_debug_overruns(void **state)
{
    invar_arena *arena;
    char *block;

    (void)state;
    assert_ok(invar_arena_new_debug(&arena, "step"));
    assert_ok(invar_arena_plan_scratch(arena, 4096));
    assert_ok(invar_arena_reserve(arena));
    block = push_block(arena, 100);
    assert_false(__asan_address_is_poisoned(block + 99));
    assert_true(__asan_address_is_poisoned(block + 100));
    assert_true(__asan_address_is_poisoned(block - 1));
    assert_ok(invar_arena_rewind(arena, 0));
    assert_true(__asan_address_is_poisoned(block));
    invar_arena_free(arena);
}
#endif

/* ---- misuse ---------------------------------------------------------------------------------- */

static void reject_late_plan(invar_arena *arena)
{
    assert_ok(invar_arena_reserve(arena));
    assert_fails(invar_arena_plan_scratch(arena, 8), INVAR_E_STATE,
                 "arena step: scratch planned after reserve");
    assert_int_equal(invar_arena_bytes(arena), 0);
}

static void test_base_arena__rejects_plan_after_reserve(void **state)
{
    (void)state;
    with_both_variants(reject_late_plan);
}

static void reject_wrong_order(invar_arena *arena)
{
    void *block = arena;

    assert_fails(invar_arena_push(&block, arena, 8, "scores"), INVAR_E_STATE,
                 "arena step: scores pushed before reserve");
    assert_null(block);
    assert_ok(invar_arena_reserve(arena));
    assert_fails(invar_arena_reserve(arena), INVAR_E_STATE, "arena step: reserved twice");
}

static void test_base_arena__rejects_calls_in_the_wrong_order(void **state)
{
    (void)state;
    with_both_variants(reject_wrong_order);
}

static void reject_over_ceiling(invar_arena *arena)
{
    void *block;

    assert_ok(invar_arena_plan_scratch(arena, 1024));
    assert_ok(invar_arena_reserve(arena));
    push_block(arena, 257);
    assert_int_equal(invar_arena_mark(arena), 512);
    assert_fails(invar_arena_push(&block, arena, 513, "scores"), INVAR_E_STATE,
                 "arena step: scores: 513 bytes of scratch beside 512 in use exceed the planned "
                 "1024");
    assert_fails(invar_arena_push(&block, arena, SIZE_MAX, "scores"), INVAR_E_STATE, "scores");
    assert_int_equal(invar_arena_mark(arena), 512);
    push_block(arena, 512);
    assert_fails(invar_arena_push(&block, arena, 1, "scores"), INVAR_E_STATE, "scores");
}

static void test_base_arena__rejects_push_over_the_ceiling(void **state)
{
    (void)state;
    with_both_variants(reject_over_ceiling);
}

static void reject_bad_rewind(invar_arena *arena)
{
    assert_ok(invar_arena_plan_scratch(arena, 1024));
    assert_ok(invar_arena_reserve(arena));
    push_block(arena, 256);
    assert_fails(invar_arena_rewind(arena, 512), INVAR_E_STATE,
                 "arena step: scratch rewound from 256 to 512");
    assert_fails(invar_arena_rewind(arena, 255), INVAR_E_STATE,
                 "arena step: scratch rewound from 256 to 255");
    assert_int_equal(invar_arena_mark(arena), 256);
    assert_ok(invar_arena_rewind(arena, 0));
}

static void test_base_arena__rejects_rewind_to_no_mark(void **state)
{
    (void)state;
    with_both_variants(reject_bad_rewind);
}

static void reject_overflow(invar_arena *arena)
{
    assert_fails(invar_arena_plan_scratch(arena, SIZE_MAX), INVAR_E_NOMEM, "arena step: scratch");
    assert_int_equal(invar_arena_bytes(arena), 0);
    assert_ok(invar_arena_plan_scratch(arena, 100));
}

static void test_base_arena__rejects_sizes_that_overflow(void **state)
{
    invar_arena *arena;

    (void)state;
    with_both_variants(reject_overflow);
    assert_ok(invar_arena_new(&arena, "host"));
    assert_ok(
        invar_arena_plan_scratch(arena, SIZE_MAX - 1000)); // no overflow, but too large to allocate
    assert_fails(invar_arena_reserve(arena), INVAR_E_NOMEM, "arena host");
    invar_arena_free(arena);
}

static void test_base_arena__cuts_long_names(void **state)
{
    invar_arena *arena;
    char text[200];
    void *block;

    (void)state;
    memset(text, 'n', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_ok(invar_arena_new(&arena, text));
    assert_fails(invar_arena_push(&block, arena, 8, "scores"), INVAR_E_STATE, "scores");
    assert_int_equal(strlen(invar_error_last()->message),
                     strlen("arena ") + 47 + strlen(": scores pushed before reserve"));
    invar_arena_free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_arena__pushes_are_aligned_and_do_not_overlap),
        cmocka_unit_test(test_base_arena__plan_is_the_largest),
        cmocka_unit_test(test_base_arena__may_be_empty),
        cmocka_unit_test(test_base_arena__scratch_is_a_stack),
        cmocka_unit_test(test_base_arena__release_scratch_repeats_addresses),
        cmocka_unit_test(test_base_arena__reserve_allocates_once),
        cmocka_unit_test(test_base_arena__debug_variant_fills_with_nan),
#ifdef INVAR_TEST_ASAN
        cmocka_unit_test(test_base_arena__sanitizer_sees_debug_overruns),
#endif
        cmocka_unit_test(test_base_arena__rejects_plan_after_reserve),
        cmocka_unit_test(test_base_arena__rejects_calls_in_the_wrong_order),
        cmocka_unit_test(test_base_arena__rejects_push_over_the_ceiling),
        cmocka_unit_test(test_base_arena__rejects_rewind_to_no_mark),
        cmocka_unit_test(test_base_arena__rejects_sizes_that_overflow),
        cmocka_unit_test(test_base_arena__cuts_long_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
