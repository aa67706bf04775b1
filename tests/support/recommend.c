/* Asks a SavedModel for items through TensorFlow's C API: no Python, and the loader of TF Serving.
 *
 * Usage: recommend MODEL OP_LIBRARY HISTORY_INPUT TOP_N_INPUT IDS_OUTPUT SCORES_OUTPUT TOP_N ID...
 *
 * OP_LIBRARY is "" or a library of operations to load first. Inputs and outputs are tensor names as
 * in the signature, such as "serving_default_history:0". TOP_N is one number, or several separated by
 * commas, which are asked for in turn. Prints one line "ID SCORE" for each item, and stops at the
 * first error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

static TF_Status* status;

static void check(const char* doing) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s: code %d, %s\n", doing, (int)TF_GetCode(status), TF_Message(status));
  exit(1);
}

static TF_Output find(TF_Graph* graph, const char* tensor_name) {
  char name[512];
  const char* colon = strrchr(tensor_name, ':');
  TF_Output output = {NULL, colon ? atoi(colon + 1) : 0};
  snprintf(name, sizeof name, "%.*s",
           (int)(colon ? colon - tensor_name : (long)strlen(tensor_name)), tensor_name);
  output.oper = TF_GraphOperationByName(graph, name);
  if (!output.oper) {
    fprintf(stderr, "the graph has no operation %s\n", name);
    exit(1);
  }
  return output;
}

static TF_Tensor* strings(char** values, int count) {
  int64_t shape[2] = {1, count};
  TF_Tensor* tensor = TF_AllocateTensor(TF_STRING, shape, 2, count * sizeof(TF_TString));
  TF_TString* cells = TF_TensorData(tensor);
  for (int i = 0; i < count; ++i) {
    TF_StringInit(&cells[i]);
    TF_StringCopy(&cells[i], values[i], strlen(values[i]));
  }
  return tensor;
}

static TF_Tensor* number(int value) {
  int64_t shape[1] = {1};
  TF_Tensor* tensor = TF_AllocateTensor(TF_INT32, shape, 1, sizeof(int));
  memcpy(TF_TensorData(tensor), &value, sizeof value);
  return tensor;
}

int main(int argc, char** argv) {
  if (argc < 9) {
    fprintf(stderr, "usage: see the source\n");
    return 2;
  }
  status = TF_NewStatus();
  if (argv[2][0]) {
    TF_LoadLibrary(argv[2], status);
    check("loading the operations");
  }
  const char* tags[] = {"serve"};
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  TF_Session* session =
      TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  check("loading the model");

  TF_Output inputs[] = {find(graph, argv[3]), find(graph, argv[4])};
  TF_Output outputs[] = {find(graph, argv[5]), find(graph, argv[6])};
  for (char* top_n = strtok(argv[7], ","); top_n; top_n = strtok(NULL, ",")) {
    TF_Tensor* fed[] = {strings(argv + 8, argc - 8), number(atoi(top_n))};
    TF_Tensor* fetched[2] = {NULL, NULL};
    TF_SessionRun(session, NULL, inputs, fed, 2, outputs, fetched, 2, NULL, 0, NULL, status);
    check("running the signature");

    const TF_TString* ids = TF_TensorData(fetched[0]);
    const float* scores = TF_TensorData(fetched[1]);
    for (int64_t i = 0; i < TF_Dim(fetched[0], 1); ++i) {
      printf("%.*s %.6f\n", (int)TF_StringGetSize(&ids[i]), TF_StringGetDataPointer(&ids[i]),
             scores[i]);
    }
  }
  return 0;
}
