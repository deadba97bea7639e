/*
 * old.c - a plug-in for a version of the interface that this engine does not have.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/invar_plugin.h"

const invar_plugin_table invar_plugin_v1 = {INVAR_PLUGIN_ABI + 1, sizeof(invar_plugin_table),
                                            .name = "old"};
