/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* What a shared library of tutti shows; everything else is hidden. For C and C++. */
#ifndef TUTTI_EXPORT_H
#define TUTTI_EXPORT_H

#if defined(__GNUC__)
#define TUTTI_EXPORT __attribute__((visibility("default")))
#else
#define TUTTI_EXPORT
#endif

#endif
