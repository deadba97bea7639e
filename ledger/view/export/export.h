/*
 * export.h - a run in the formats of others: CSV, JSON lines, TensorBoard.
 *
 * Equal ledgers give equal bytes. An export reads one snapshot, also while the run is being
 * written. Numbers have as few digits as read back to the same bits, or those bits beside them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_EXPORT_EXPORT_H
#define INVAR_LEDGER_VIEW_EXPORT_EXPORT_H

#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What each of the files begins with. */
#define INVAR_EXPORT_CSV_MARK "step,segment,name,value,bits\r\n"
#define INVAR_EXPORT_JSONL_MARK "{\"kind\":\"run\","

/*
 * step,segment,name,value,bits (RFC 4180), a row a metric of the timeline, and a row a result of
 * an evaluation, whose name is eval/DATASET/METRIC. Ordered by step and name.
 */
invar_status invar_export_csv(FILE *out, invar_ledger *ledger, int64_t run) INVAR_MUST_USE;

/* A field of a row, in quotes where it needs them. */
void invar_export_csv_field(FILE *out, const char *text, size_t bytes);

/*
 * All that the ledger knows of the run, a JSON object a line, every segment. "kind" says what a
 * line is, and they come in this order: run, identity, segment, fact, object, point, step, replica,
 * stat, sample, reply, evaluation, checkpoint, event, seal, entry; of one kind in the order of the
 * table's key. Members have the names of the table's columns, except "segment" for seg and
 * "KIND_kind" for kind. Blobs are hexadecimal digits. Each double X is followed by X_bits; X is a
 * string where JSON has no such number: "nan", "inf", "-inf".
 */
invar_status invar_export_jsonl(FILE *out, invar_ledger *ledger, int64_t run) INVAR_MUST_USE;

/*
 * An event file in FOLDER/NAME/, where NAME is the run's. Scalars are what the CSV has, and the
 * gauges, at the wall time of their transaction. TensorBoard adds up whatever event files a folder
 * has, so one that has any is refused. A failure leaves no file behind.
 */
invar_status invar_export_tensorboard(const char *folder, invar_ledger *ledger,
                                      int64_t run) INVAR_MUST_USE;

/* ---- events while a run is written ----------------------------------------------------------- */

typedef struct invar_tensorboard_writer invar_tensorboard_writer;

/*
 * Before anything is written for a run called `name`: INVAR_E_IO where its file cannot be made;
 * INVAR_E_INVALID where it begins and there are events already.
 */
invar_status invar_tensorboard_writer_check(const char *folder, const char *name,
                                            bool begins) INVAR_MUST_USE;

/*
 * The same file, which grows. It goes on behind step `after` (-2: it begins): what an earlier
 * process wrote up to there stays, what it wrote of later steps, or half, is cut off. At any time
 * the file has the bytes of an export of the steps that were added.
 */
invar_status invar_tensorboard_writer_open(invar_tensorboard_writer **out, const char *folder,
                                           invar_ledger *ledger, int64_t run,
                                           int64_t after) INVAR_MUST_USE;

/* Steps up to this one, whose evaluations are recorded, too. */
invar_status invar_tensorboard_writer_add(invar_tensorboard_writer *events,
                                          int64_t upto) INVAR_MUST_USE;
void invar_tensorboard_writer_close(invar_tensorboard_writer *events);

#ifdef __cplusplus
}
#endif
#endif
