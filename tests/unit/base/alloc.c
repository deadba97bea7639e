/*
 * alloc.c - tests of the functions through which the program allocates all heap memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/alloc.h"

#include <string.h>

#include "tests/support.h"

static void test_base_alloc__blocks_are_aligned_and_writable(void **state)
{
    (void)state;
    for (size_t bytes = 0; bytes < 1200; bytes += 37) {
        void *block;
        assert_ok(invar_alloc(&block, bytes, 1, "block"));
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % INVAR_ALIGN, 0);
        memset(block, 1, bytes);
        invar_free(block);
    }
}

static void test_base_alloc__empty_blocks_are_valid_and_distinct(void **state)
{
    void *a, *b;

    (void)state;
    assert_ok(invar_alloc(&a, 0, 8, "a"));
    assert_ok(invar_alloc(&b, 8, 0, "b"));
    assert_non_null(a);
    assert_non_null(b);
    assert_ptr_not_equal(a, b);
    invar_free(a);
    invar_free(b);
    invar_free(NULL);
}

static void test_base_alloc__rejects_overflow(void **state)
{
    void *block = state;

    (void)state;
    assert_fails(invar_alloc(&block, SIZE_MAX / 2, 3, "weights"), INVAR_E_NOMEM, "weights");
    assert_null(block);
    assert_fails(invar_alloc(&block, SIZE_MAX, 1, "weights"), INVAR_E_NOMEM, "weights");
    assert_fails(invar_alloc(&block, 1, SIZE_MAX, "weights"), INVAR_E_NOMEM, "weights");
    assert_fails(invar_alloc(&block, (size_t)1 << 32, (size_t)1 << 32, "weights"), INVAR_E_NOMEM,
                 "weights");
}

static void test_base_alloc__appended_text_is_terminated(void **state)
{
    char *text = NULL, expected[1001] = "";
    size_t used = 0, capacity = 0;

    (void)state;
    for (size_t bytes = 0; used + bytes < sizeof expected; bytes++) {
        memset(expected + used, 'a' + (int)(bytes % 26), bytes);
        assert_ok(invar_alloc_append(&text, &used, &capacity, expected + used, bytes, "text"));
        assert_in_range(used, 0, capacity - 1);
        assert_string_equal(text, expected);
    }
    assert_in_range(used, 900, 1000);
    assert_fails(invar_alloc_append(&text, &used, &capacity, expected, SIZE_MAX - 2000, "text"),
                 INVAR_E_NOMEM, "text");
    assert_string_equal(text, expected);
    invar_free(text);
}

static void test_base_alloc__growing_arrays_keep_their_used_items(void **state)
{
    int32_t *items = NULL, *kept;
    int64_t capacity = 0, kept_capacity;

    (void)state;
    for (int64_t count = 0; count < 1000; count++) {
        assert_ok(INVAR_GROW(items, capacity, count, count + 1, "items"));
        assert_true(capacity > count);
        items[count] = (int32_t)(7 * count);
    }
    assert_in_range(capacity, 1000, 2000);
    for (int32_t i = 0; i < 1000; i++)
        assert_int_equal(items[i], 7 * i);
    kept = items;
    kept_capacity = capacity;
    assert_ok(INVAR_GROW(items, capacity, 1000, capacity, "items"));
    assert_ptr_equal(items, kept);
    assert_fails(INVAR_GROW(items, capacity, 1000, INT64_MAX, "items"), INVAR_E_NOMEM, "items");
    assert_ptr_equal(items, kept);
    assert_int_equal(capacity, kept_capacity);
    assert_int_equal(items[999], 6993);
    invar_free(items);
}

typedef struct recording_allocator {
    size_t requested_bytes;
    int frees;
    _Alignas(INVAR_ALIGN) char block[INVAR_ALIGN];
} recording_allocator;

static void *record_alloc(size_t bytes, void *payload)
{
    recording_allocator *r = payload;

    r->requested_bytes = bytes;
    return bytes <= sizeof r->block ? r->block : NULL;
}

static void record_free(void *block, void *payload)
{
    recording_allocator *r = payload;

    assert_ptr_equal(block, r->block);
    r->frees++;
}

static void test_base_alloc__uses_the_allocator_that_is_set(void **state)
{
    recording_allocator r = {0};
    invar_allocator allocator = {record_alloc, record_free, &r};
    void *block;

    (void)state;
    invar_allocator_set(&allocator);
    assert_ok(invar_alloc(&block, 3, 5, "small"));
    assert_ptr_equal(block, r.block);
    assert_int_equal(r.requested_bytes, 15);
    invar_free(block);
    invar_free(NULL);
    assert_int_equal(r.frees, 1);
    assert_fails(invar_alloc(&block, 1000, 1, "large"), INVAR_E_NOMEM,
                 "large: no memory for 1000 bytes");
    assert_null(block);
    invar_allocator_set(NULL);
    assert_ok(invar_alloc(&block, 1, 1, "standard again"));
    assert_ptr_not_equal(block, r.block);
    invar_free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_alloc__blocks_are_aligned_and_writable),
        cmocka_unit_test(test_base_alloc__empty_blocks_are_valid_and_distinct),
        cmocka_unit_test(test_base_alloc__rejects_overflow),
        cmocka_unit_test(test_base_alloc__appended_text_is_terminated),
        cmocka_unit_test(test_base_alloc__growing_arrays_keep_their_used_items),
        cmocka_unit_test(test_base_alloc__uses_the_allocator_that_is_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
