/* A stand-in for an external delegate such as libedgetpu.so.1: it takes no operator over, but
 * answers to the functions that an interpreter calls and writes down the options it was given.
 * Options: log=FILE; fail=TEXT refuses, as a delegate whose device is missing does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct TfLiteDelegate {
  void *data;
  int (*prepare)(void *context, struct TfLiteDelegate *delegate);
  void *copy_from, *copy_to, *free_handle;
  long flags;
  void *opaque_builder;
} TfLiteDelegate;

static int prepare(void *context, TfLiteDelegate *delegate) {
  FILE *log = delegate->data ? fopen(delegate->data, "a") : NULL;
  if (log) {
    fprintf(log, "prepared\n");
    fclose(log);
  }
  return 0;
}

void *tflite_plugin_create_delegate(char **keys, char **values, size_t count,
                                    void (*report)(const char *)) {
  TfLiteDelegate *delegate = calloc(1, sizeof *delegate);
  const char *given = getenv("STAND_IN_LOG");
  for (size_t i = 0; i < count; i++)
    if (!strcmp(keys[i], "log")) given = values[i];
  FILE *log = given ? fopen(given, "a") : NULL;
  for (size_t i = 0; i < count; i++) {
    if (log) fprintf(log, "%s=%s\n", keys[i], values[i]);
    if (!strcmp(keys[i], "fail")) {
      report(values[i]);
      if (log) fclose(log);
      free(delegate);
      return NULL;
    }
  }
  if (log) fclose(log);
  delegate->data = given ? strdup(given) : NULL;
  delegate->prepare = prepare;
  return delegate;
}

void tflite_plugin_destroy_delegate(void *delegate) { free(delegate); }
