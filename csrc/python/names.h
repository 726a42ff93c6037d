// The enumerations of programs by the names that Python uses. An unknown name is a ValueError.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "program/program.h"

namespace dragoman {

inline void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

inline KVPrecision kv_precision(const std::string& name) {
  if (name == "float32") return KVPrecision::float32;
  if (name == "bfloat16") return KVPrecision::bfloat16;
  if (name == "int8") return KVPrecision::int8;
  require(name == "int4", "a KV pool is \"float32\", \"bfloat16\", \"int8\" or \"int4\", not \"" + name + "\"");
  return KVPrecision::int4;
}

inline const char* name_of(KVPrecision precision) {
  switch (precision) {
    case KVPrecision::float32: return "float32";
    case KVPrecision::bfloat16: return "bfloat16";
    case KVPrecision::int8: return "int8";
    case KVPrecision::int4: return "int4";
  }
  return "";
}

inline Norm norm_kind(const std::string& name) {
  if (name == "rms") return Norm::rms;
  require(name == "layer", "a norm is \"rms\" or \"layer\", not \"" + name + "\"");
  return Norm::layer;
}

inline Activation activation(const std::string& name) {
  if (name == "silu") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "relu2") return Activation::relu2;
  if (name == "clamped_swiglu") return Activation::clamped_swiglu;
  require(name == "relu",
          "an activation is \"silu\", \"gelu\", \"gelu_tanh\", \"relu\", \"relu2\" or \"clamped_swiglu\", not \"" +
              name + "\"");
  return Activation::relu;
}

inline Gate gate_kind(const std::string& name) {
  if (name == "plain") return Gate::plain;
  if (name == "silu") return Gate::silu;
  if (name == "sigmoid") return Gate::sigmoid;
  require(name == "gelu_tanh", "a factor is \"plain\", \"silu\", \"sigmoid\" or \"gelu_tanh\", not \"" + name + "\"");
  return Gate::gelu_tanh;
}

inline SharedExpert shared_expert(const std::optional<std::string>& name) {
  if (!name) return SharedExpert::none;
  if (*name == "added") return SharedExpert::added;
  require(*name == "gated", "a shared expert is \"added\" or \"gated\", not \"" + *name + "\"");
  return SharedExpert::gated;
}

inline Scores scores(const std::string& name) {
  if (name == "softmax") return Scores::softmax;
  if (name == "sigmoid") return Scores::sigmoid;
  require(name == "sparse_mixer", "scores are \"softmax\", \"sigmoid\" or \"sparse_mixer\", not \"" + name + "\"");
  return Scores::sparse_mixer;
}

}  // namespace dragoman
