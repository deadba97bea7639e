/*
 * fused_parts.c - tests that a fused call has the bits of its parts in every output.
 *
 * The calls are the random cases of tests/gpu/cases: all pairs and formats, edge shapes, gaps,
 * outputs on inputs. Running the parts must not change the memory of the call. Control: a bit that
 * a backend flips in one output of the fused call is reported for this output.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/fused_parts.h"

#include <stddef.h>
#include <string.h>

#include "kernels-deterministic/check/check.h"
#include "tests/gpu/cases/cases.h"
#include "tests/ops.h"

enum { MAX_FIELDS = 32 }; /* upper bound on the fields of an op */

/* ---- random calls ---------------------------------------------------------------------------- */

typedef void each_call(void *payload, invar_case *c);

static void for_calls(invar_op op, uint64_t seeds, each_call *each, void *payload)
{
    // first seed of the cases with optional outputs
    uint64_t more = op == INVAR_OP_GRAD_NORM ? INVAR_CASE_SHARDS : INVAR_CASE_FUSED;

    for (int n = 0; n < (invar_op_depends_on_numerics(op) ? INVAR_NUMERICS_COUNT : 1); n++)
        for (uint64_t i = 0; i < 2 * seeds; i++) {
            invar_case c;
            invar_case_make(&c, op, (invar_numerics)n, i < seeds ? i : more + i - seeds);
            each(payload, &c);
            invar_case_free(&c);
        }
}

static bool may_be_fused(invar_op op)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    assert_true(count <= MAX_FIELDS);
    for (int i = 0; i < count; i++)
        if (fields[i].fused)
            return true;
    return false;
}

/* Calls `each` for random calls of the ops that may be fused, including calls that are not. */
static void for_all_calls(uint64_t seeds, each_call *each, void *payload)
{
    seeds *= invar_test_full() ? 20 : 1;
    for (invar_op op = 0; op < INVAR_OP_COUNT; op++)
        if (may_be_fused(op)) // ops with products have more combinations of types
            for_calls(op, invar_op_depends_on_numerics(op) ? 3 * seeds : seeds, each, payload);
}

/* Returns whether the call has a field that the table marks as fused. */
static bool is_fused(const invar_case *c)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    for (int i = 0; i < count; i++)
        if (fields[i].fused && invar_field_present(&fields[i], &c->args))
            return true;
    return false;
}

/* ---- the list -------------------------------------------------------------------------------- */

static bool within(const void *p, size_t bytes, const char *memory, size_t size)
{
    return (const char *)p >= memory && (const char *)p + bytes <= memory + size;
}

static void check_output(const invar_case *c, const invar_case_parts *p,
                         const invar_fused_part_output *o)
{
    int64_t row = invar_tensor_row_elements(&o->reference);
    size_t bytes = (size_t)(o->reference.shape[0] * row * invar_dtype_bits(o->reference.dtype)) / 8;

    assert_true(invar_field_present(o->field, &c->args));
    assert_ok(invar_check_like(c->op, "side", &o->reference, "fused", &o->fused));
    assert_int_equal(o->reference.row_stride, row);
    assert_true(o->host ? within(o->reference.data, bytes, p->host_side, p->list.host_bytes)
                        : within(o->reference.data, bytes, p->side, p->list.bytes));
    assert_true(o->call >= 0 && o->call < p->list.count);
}

/*
 * Checks the list against its plan: equal sizes, one entry per output, and only calls that have no
 * parts themselves.
 */
static void check_list(const invar_case *c, const invar_case_parts *p)
{
    invar_fused_parts plan;
    int count, outputs = 0;
    const invar_field *fields = invar_op_fields(&count, c->op);

    invar_fused_parts_plan(&plan, c->op, &c->args, NULL, NULL);
    assert_int_equal(plan.count, p->list.count);
    assert_int_equal(plan.bytes, p->list.bytes);
    assert_int_equal(plan.host_bytes, p->list.host_bytes);
    for (int i = 0; i < count && fields[i].role != INVAR_FIELD_IN; i++)
        outputs += invar_field_present(&fields[i], &c->args);
    assert_int_equal(p->list.outputs, outputs);
    for (int i = 0; i < p->list.outputs; i++)
        check_output(c, p, &p->list.output[i]);
    for (int i = 0; i < p->list.count; i++) {
        invar_fused_parts_plan(&plan, p->list.call[i].op, &p->list.call[i].args, NULL, NULL);
        assert_int_equal(plan.count, 0);
    }
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* Records which types were compared. */
typedef struct comparison {
    const invar_device *dev;
    unsigned seen[INVAR_OP_COUNT][MAX_FIELDS]; /* bit set of types; 1 for a field without a type */
} comparison;

/* Fields whose types are recorded: those that make a call fused, and outputs. */
static bool is_recorded(const invar_field *f)
{
    return f->fused || f->role == INVAR_FIELD_OUT;
}

static void record_types(comparison *n, const invar_case *c)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    for (int i = 0; i < count; i++)
        if (is_recorded(&fields[i]) && invar_field_present(&fields[i], &c->args))
            n->seen[c->op][i] |= fields[i].kind == INVAR_FIELD_TENSOR
                                     ? 1u << invar_field_memory(&fields[i], &c->args).dtype
                                     : 1u;
}

/* Runs the parts, then the call, and compares each output. Parts must not write its memory. */
static void compare(void *payload, invar_case *c)
{
    comparison *n = payload;
    const invar_fused_part_output *differs;
    invar_digest before = invar_case_digest(c), after;
    invar_case_parts parts;

    assert_ok(invar_case_parts_run(&parts, n->dev, c));
    after = invar_case_digest(c);
    if (memcmp(&before, &after, sizeof before) != 0)
        fail_msg("%s: %s: its parts wrote into its memory", invar_op_name(c->op), c->text);
    assert_int_equal(parts.list.count > 0, is_fused(c));
    if (parts.list.count > 0) {
        check_list(c, &parts);
        assert_ok(invar_case_run(n->dev, c));
        assert_ok(invar_case_parts_compare(&differs, &parts, n->dev));
        if (differs)
            fail_msg("%s: %s: %s is not what part %d, %s, gives", invar_op_name(c->op), c->text,
                     differs->field->name, differs->call,
                     invar_op_name(parts.list.call[differs->call].op));
        record_types(n, c);
    }
    invar_case_parts_free(&parts, n->dev);
}

/* Returns whether all types of the set were seen, or none. */
static bool all_or_none(unsigned seen, unsigned set)
{
    return (seen & set) == 0 || (seen & set) == set;
}

/* Returns whether the type of the output does not depend on the storage type. */
static bool is_always_f32(invar_op op, const invar_field *f)
{
    return op == INVAR_OP_RMSNORM_BWD && f->offset == offsetof(invar_rmsnorm_bwd_args, block_sums);
}

static void check_seen(invar_op op, const invar_field *f, unsigned seen)
{
    bool any_storage = f->role == INVAR_FIELD_OUT && !is_always_f32(op, f);

    if (f->fused && !seen)
        fail_msg("%s: %s: no call that was compared has it", invar_op_name(op), f->name);
    if (!all_or_none(seen, INVAR_TYPES_QUANTIZED) ||
        (any_storage && !all_or_none(seen, INVAR_TYPES_STORAGE)))
        fail_msg("%s: %s: not every type was compared: %x", invar_op_name(op), f->name, seen);
}

static void test_parts__have_the_bits_of_the_call(void **state)
{
    static comparison n;
    const invar_device *devices = *state;

    // by default one device of each CPU path; the second one is portable
    for (int i = 0; i < INVAR_TEST_DEVICES; i += (int)invar_test_count(2, 1)) {
        n.dev = &devices[i];
        for_all_calls(i == 0 ? 16 : (uint64_t)invar_test_count(1, 3), compare, &n);
    }
    for (invar_op op = 0; op < INVAR_OP_COUNT; op++) {
        int count;
        const invar_field *fields = invar_op_fields(&count, op);
        for (int i = 0; i < count; i++)
            if (is_recorded(&fields[i]))
                check_seen(op, &fields[i], n.seen[op][i]);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Each optional field either makes a call fused or has a reason why it does not. */
static void test_parts__classify_every_optional_field(void **state)
{
    (void)state;
    for (invar_op op = 0; op < INVAR_OP_COUNT; op++) {
        int count;
        const invar_field *fields = invar_op_fields(&count, op);
        for (int i = 0; i < count; i++) {
            const char *why = fields[i].not_fused_reason;
            if (fields[i].optional ? fields[i].fused == (why && strlen(why) >= 8)
                                   : fields[i].fused || why)
                fail_msg("%s: %s: needs parts, or a reason for none", invar_op_name(op),
                         fields[i].name);
        }
    }
}

/* ---- negative control ------------------------------------------------------------------------ */

/* A backend that flips a bit of one output of fused calls. */
static struct {
    const invar_backend *real;
    const invar_field *field;               /* the output with the flipped bit */
    bool found[INVAR_OP_COUNT][MAX_FIELDS]; /* outputs in which the fault was detected */
} faulty;

static bool is_empty(const invar_tensor *t)
{
    return t->shape[0] * invar_tensor_row_elements(t) == 0;
}

static invar_status flip_bit(invar_op op, const void *args)
{
    invar_fused_parts parts;

    invar_fused_parts_plan(&parts, op, args, NULL, NULL);
    for (int i = 0; i < parts.outputs; i++)
        if (parts.output[i].field == faulty.field && !is_empty(&parts.output[i].fused))
            *(unsigned char *)parts.output[i].fused.data ^= 1;
    return INVAR_OK;
}

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    static invar_status run_##fn(const invar_device *dev, const void *args, void *scratch)         \
    {                                                                                              \
        INVAR_TRY(faulty.real->ops[INVAR_OP_##ID].run(dev, args, scratch));                        \
        return flip_bit(INVAR_OP_##ID, args);                                                      \
    }
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* Injects a fault into each output of the call, one after another, and expects it to be found. */
static void find_faults(void *payload, invar_case *c)
{
    const invar_device *dev = payload;
    const invar_fused_part_output *differs;
    invar_case_parts parts;
    invar_fused_parts list;
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    invar_fused_parts_plan(&list, c->op, &c->args, NULL, NULL);
    for (int i = 0; i < list.outputs; i++) {
        if (is_empty(&list.output[i].fused))
            continue;
        faulty.field = list.output[i].field;
        assert_ok(invar_case_parts_run(&parts, dev, c));
        assert_ok(invar_case_run(dev, c));
        assert_ok(invar_case_parts_compare(&differs, &parts, dev));
        if (!differs || differs->field != faulty.field)
            fail_msg("%s: %s: a fault in %s shows in %s", invar_op_name(c->op), c->text,
                     faulty.field->name, differs ? differs->field->name : "nothing");
        faulty.found[c->op][faulty.field - fields] = true;
        invar_case_parts_free(&parts, dev);
    }
}

static void test_parts__detect_a_fault_of_the_fused_kernel(void **state)
{
    const invar_device *devices = *state;
    invar_backend backend = *devices[0].backend;
    invar_device dev = devices[0];

    faulty.real = devices[0].backend;
#define INVAR_OP(ID, fn, name, revision, numerics) backend.ops[INVAR_OP_##ID].run = run_##fn;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
    dev.backend = &backend;
    for_all_calls(8, find_faults, &dev);
    for (invar_op op = 0; op < INVAR_OP_COUNT; op++) {
        int count;
        const invar_field *fields = invar_op_fields(&count, op);
        for (int i = 0; i < count && fields[i].role != INVAR_FIELD_IN; i++)
            if (may_be_fused(op) && !faulty.found[op][i])
                fail_msg("%s: no fault in %s was looked for", invar_op_name(op), fields[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts__have_the_bits_of_the_call),
        cmocka_unit_test(test_parts__classify_every_optional_field),
        cmocka_unit_test(test_parts__detect_a_fault_of_the_fused_kernel),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
