/*
 * not_a_plugin.c - a shared object without the symbol of a plug-in.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
int invar_plugin_v2(void);

int invar_plugin_v2(void)
{
    return 0;
}
