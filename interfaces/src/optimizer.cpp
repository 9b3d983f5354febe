// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// tutti_optimizer_*, tutti_parameter_*, tutti_gradient_*, tutti_state_bind, tutti_inspection_add:
// what is declared before the run, and the caller's arrays during it.
#include <fmt/format.h>

#include <algorithm>

#include "handles.hpp"
#include "settings.hpp"
#include "status.hpp"

using namespace tutti;
using namespace tutti::c;

// --- the object ----------------------------------------------------------------------------------

Device* tutti_optimizer_s::make_device()
{
  if (!device) device = on_cuda ? make_cuda_device(0) : make_host_device();
  return device.get();
}

Piece tutti_optimizer_s::piece(std::size_t parameter) const
{
  // A set of one, so that asking for each of many parameters does not cost their square.
  ParameterSet alone;
  alone.add(parameters[parameter]);
  const Topology& t = topology->topology;
  return SlotLayout(alone, t.model_parallel(), t.model_rank()).piece(0);
}

Values tutti_optimizer_s::held_weights(std::size_t parameter) const
{
  return {const_cast<void*>(adam->weights(parameter)), type_of(parameters[parameter].precision),
          TUTTI_HOST};
}

void tutti_optimizer_s::write_bound_weights()
{
  if (!adam) return;
  for (std::size_t p = 0; p < weights.size(); ++p)
    if (weights[p].bound.data != nullptr)
      copy_values(weights[p].bound, held_weights(p), 0, adam->piece(p).elements, device.get());
}

namespace {

std::size_t index_of(const tutti_optimizer_s& o, std::int64_t parameter)
{
  if (parameter < 0 || static_cast<std::uint64_t>(parameter) >= o.parameters.size())
    throw InvalidArgument(
        fmt::format("there is no parameter {} (optimizer '{}' has {}); check the index", parameter,
                    o.name, o.parameters.size()));
  return static_cast<std::size_t>(parameter);
}

void require_adam(const tutti_optimizer_s& o, const char* call)
{
  if (!o.is_adam())
    throw InvalidArgument(fmt::format(
        "{} is refused (optimizer '{}' is the caller's own and keeps its weights and gradients); "
        "use its callbacks",
        call, o.name));
}

void require_settings(const tutti_optimizer_s& o, const char* call)
{
  if (o.started())
    throw InvalidArgument(fmt::format(
        "{} is refused (the run of optimizer '{}' has started); call it before tutti_run_start",
        call, o.name));
}

void require_started(const tutti_optimizer_s& o, const char* call)
{
  if (!o.started() || o.run == nullptr || o.run->state != tutti_run_s::State::started)
    throw InvalidArgument(fmt::format(
        "{} is refused (the run of optimizer '{}' has not started); call tutti_run_start first",
        call, o.name));
}

tutti_optimizer create(tutti_topology topology, const char* name)
{
  auto optimizer = std::make_unique<tutti_optimizer_s>();
  optimizer->topology = &given(topology, "the topology");
  optimizer->name = text(name, "the optimizer's name");
  if (optimizer->name.empty())
    throw InvalidArgument(
        "an optimizer needs a name (it identifies it in checkpoints); give one that is not empty");
  optimizer->options.name = optimizer->name;
  ++topology->users;
  return optimizer.release();
}

}  // namespace

tutti_status tutti_optimizer_create_adam(tutti_topology topology, const char* name,
                                         tutti_optimizer* optimizer)
{
  return guarded([&] {
    given(optimizer, "the output for the optimizer");
    *optimizer = create(topology, name);
  });
}

tutti_status tutti_optimizer_create_callbacks(tutti_topology topology, const char* name,
                                              const tutti_callbacks* callbacks,
                                              tutti_optimizer* optimizer)
{
  return guarded([&] {
    given(optimizer, "the output for the optimizer");
    const tutti_callbacks& copy = given(callbacks, "the callbacks");
    given(copy.inspect, "the callback inspect");
    given(copy.publish, "the callback publish");
    *optimizer = create(topology, name);
    (*optimizer)->callbacks = copy;
  });
}

tutti_status tutti_optimizer_set_number(tutti_optimizer optimizer, const char* setting,
                                        double value)
{
  return guarded([&] {
    tutti_optimizer_s& o = given(optimizer, "the optimizer");
    require_settings(o, "tutti_optimizer_set_number");
    require_adam(o, "tutti_optimizer_set_number");
    Setting s(text(setting, "the setting's name"), "Adam");
    s.real("learning_rate", value, o.options.learning_rate);
    s.real("beta1", value, o.options.beta1, 0, 1);
    s.real("beta2", value, o.options.beta2, 0, 1);
    s.real("epsilon", value, o.options.epsilon);
    s.real("weight_decay", value, o.options.weight_decay);
    s.flag("decoupled", value, o.options.decoupled);
    s.real("ema_decay", value, o.options.ema_decay, 0, 1);
    s.flag("fp32_wire", value, o.options.fp32_wire);
    s.real("rank_weight", value, o.rank_weight);
    s.finish();
  });
}

tutti_status tutti_optimizer_set_text(tutti_optimizer optimizer, const char* setting,
                                      const char* value)
{
  return guarded([&] {
    tutti_optimizer_s& o = given(optimizer, "the optimizer");
    require_settings(o, "tutti_optimizer_set_text");
    Setting s(text(setting, "the setting's name"), "an optimizer");
    s.choice("device", text(value, "the setting's text"), o.on_cuda, {"host", "cuda"});
    s.finish();
    o.device.reset();
  });
}

tutti_status tutti_optimizer_destroy(tutti_optimizer* optimizer)
{
  return guarded([&] {
    tutti_optimizer_s* object = given(optimizer, "the optimizer");
    if (object == nullptr) return;
    if (object->run != nullptr)
      throw InvalidArgument(
          fmt::format("optimizer '{}' cannot be destroyed (its run uses it); destroy the run first",
                      object->name));
    if (object->adam) object->adam->close_buffers();
    --object->topology->users;
    delete object;
    *optimizer = nullptr;
  });
}

// --- parameters ----------------------------------------------------------------------------------

tutti_status tutti_parameter_add(tutti_optimizer optimizer, const char* name, tutti_type type,
                                 int axes, const int64_t* shape, int placement, int64_t* parameter)
{
  return guarded([&] {
    tutti_optimizer_s& o = given(optimizer, "the optimizer");
    require_settings(o, "tutti_parameter_add");
    given(parameter, "the output for the parameter's index");
    ParameterSpec spec;
    spec.name = text(name, "the parameter's name");
    spec.precision = precision_of(type);
    if (axes < 0)
      throw InvalidArgument(fmt::format(
          "parameter '{}' cannot have {} axes (it is negative); give 0 or more", spec.name, axes));
    if (axes > 0) given(shape, "the shape");
    for (int axis = 0; axis < axes; ++axis) {
      if (shape[axis] < 1)
        throw InvalidArgument(
            fmt::format("parameter '{}' has no elements (axis {} has extent {}); leave it out",
                        spec.name, axis, shape[axis]));
      spec.shape.push_back(static_cast<std::size_t>(shape[axis]));
    }
    if (placement >= 0) {
      spec.placement = Placement::split;
      spec.split_axis = placement;
    } else if (placement == TUTTI_REPLICATED_PARTIAL) {
      spec.gradient = ReplicaGradient::partial;
    } else if (placement != TUTTI_REPLICATED) {
      throw InvalidArgument(fmt::format(
          "placement {} of parameter '{}' is refused (it is no axis); give TUTTI_REPLICATED, "
          "TUTTI_REPLICATED_PARTIAL or the axis to split along",
          placement, spec.name));
    }
    *parameter = static_cast<int64_t>(o.parameters.add(std::move(spec)));
    o.weights.emplace_back();
    o.given.push_back(0);
  });
}

tutti_status tutti_parameter_piece(tutti_optimizer optimizer, int64_t parameter, int64_t* begin,
                                   int64_t* extent, int64_t* elements)
{
  return guarded([&] {
    const tutti_optimizer_s& o = given(optimizer, "the optimizer");
    const std::size_t p = index_of(o, parameter);
    const ParameterSpec& spec = o.parameters[p];
    const Piece piece = o.piece(p);
    const std::size_t axis =
        spec.placement == Placement::split ? static_cast<std::size_t>(spec.split_axis) : 0;
    if (begin != nullptr) *begin = static_cast<int64_t>(piece.axis_begin);
    if (extent != nullptr)
      *extent = piece.shape.empty() ? 1 : static_cast<int64_t>(piece.shape[axis]);
    if (elements != nullptr) *elements = static_cast<int64_t>(piece.elements);
  });
}

tutti_status tutti_parameter_set(tutti_optimizer optimizer, int64_t parameter, tutti_type type,
                                 tutti_space space, const void* values)
{
  return guarded([&] {
    tutti_optimizer_s& o = given(optimizer, "the optimizer");
    const std::size_t p = index_of(o, parameter);
    require_adam(o, "tutti_parameter_set");
    require_settings(o, "tutti_parameter_set");
    const Values from{const_cast<void*>(values), type, space};
    const std::size_t elements = o.piece(p).elements;
    if (elements == 0) return;
    check_values(from, o.on_cuda);
    std::vector<float> initial(elements);
    copy_values({initial.data(), TUTTI_FP32, TUTTI_HOST}, from, 0, elements, o.make_device());
    o.weights[p].initial = std::move(initial);
  });
}

tutti_status tutti_parameter_bind(tutti_optimizer optimizer, int64_t parameter, tutti_type type,
                                  tutti_space space, void* values)
{
  return guarded([&] {
    tutti_optimizer_s& o = given(optimizer, "the optimizer");
    const std::size_t p = index_of(o, parameter);
    require_adam(o, "tutti_parameter_bind");
    require_settings(o, "tutti_parameter_bind");
    const Values bound{values, type, space};
    if (o.piece(p).elements == 0) return;
    check_values(bound, o.on_cuda);
    o.weights[p].bound = bound;
  });
}

tutti_status tutti_parameter_values(tutti_optimizer optimizer, int64_t parameter,
                                    const void** values)
{
  return guarded([&] {
    const tutti_optimizer_s& o = given(optimizer, "the optimizer");
    const std::size_t p = index_of(o, parameter);
    require_adam(o, "tutti_parameter_values");
    require_started(o, "tutti_parameter_values");
    given(values, "the output for the values") = o.adam->weights(p);
  });
}

tutti_status tutti_parameter_get(tutti_optimizer optimizer, int64_t parameter, tutti_type type,
                                 tutti_space space, void* values)
{
  return guarded([&] {
    const tutti_optimizer_s& o = given(optimizer, "the optimizer");
    const std::size_t p = index_of(o, parameter);
    require_adam(o, "tutti_parameter_get");
    require_started(o, "tutti_parameter_get");
    const Values to{values, type, space};
    const std::size_t elements = o.adam->piece(p).elements;
    if (elements == 0) return;
    check_values(to, o.on_cuda);
    copy_values(to, o.held_weights(p), 0, elements, o.device.get());
  });
}

// --- gradients -----------------------------------------------------------------------------------

namespace {

/// What both gradient calls begin with. A parameter counts as given from here on.
template <class Work>
tutti_status gradient(tutti_optimizer optimizer, int64_t parameter, const char* call, Work&& work)
{
  return guarded([&] {
    tutti_optimizer_s& o = given(optimizer, "the optimizer");
    require_adam(o, call);
    require_started(o, call);
    o.run->in_window([&](Window&) {
      const std::size_t p = index_of(o, parameter);
      work(o, p);
      o.given[p] = 1;
    });
  });
}

}  // namespace

tutti_status tutti_gradient_set(tutti_optimizer optimizer, int64_t parameter, tutti_type type,
                                tutti_space space, const void* values)
{
  return gradient(optimizer, parameter, "tutti_gradient_set",
                  [&](tutti_optimizer_s& o, std::size_t p) {
                    const std::size_t elements = o.adam->piece(p).elements;
                    if (elements == 0) return;
                    const Values from{const_cast<void*>(values), type, space};
                    check_values(from, o.on_cuda);
                    copy_values({o.adam->gradient(p), type_of(o.parameters[p].precision),
                                 o.on_cuda ? TUTTI_CUDA : TUTTI_HOST},
                                from, 0, elements, o.device.get());
                  });
}

tutti_status tutti_gradient_values(tutti_optimizer optimizer, int64_t parameter, void** values)
{
  return gradient(
      optimizer, parameter, "tutti_gradient_values", [&](tutti_optimizer_s& o, std::size_t p) {
        if (o.on_cuda)
          throw InvalidArgument(
              fmt::format("tutti_gradient_values is refused (optimizer '{}' is on a CUDA device); "
                          "use tutti_gradient_set",
                          o.name));
        given(values, "the output for the values") = o.adam->gradient(p);
      });
}

// --- optimizers of the caller's own --------------------------------------------------------------

tutti_status tutti_inspection_add(tutti_inspection inspection, int64_t parameter, int64_t first,
                                  int64_t count, tutti_part part, tutti_type type,
                                  tutti_space space, const void* values)
{
  return guarded([&] {
    tutti_inspection_s& i = given(inspection, "the inspection");
    try {
      if (parameter < 0 || first < 0 || count < 0)
        throw InvalidArgument(fmt::format(
            "parameter {}, first {}, count {} are refused (one is negative); give 0 or more",
            parameter, first, count));
      i.participant->show(i, static_cast<std::size_t>(parameter), static_cast<std::size_t>(first),
                          static_cast<std::size_t>(count), part, type, space, values);
    } catch (...) {
      if (!i.refusal) i.refusal = std::current_exception();
      throw;
    }
  });
}

tutti_status tutti_state_bind(tutti_optimizer optimizer, int64_t parameter, const char* array,
                              float* values)
{
  return guarded([&] {
    tutti_optimizer_s& o = given(optimizer, "the optimizer");
    const std::size_t p = index_of(o, parameter);
    require_settings(o, "tutti_state_bind");
    if (o.is_adam())
      throw InvalidArgument(fmt::format(
          "tutti_state_bind is refused (optimizer '{}' is Adam and has its own state); it is for "
          "optimizers with callbacks",
          o.name));
    const std::string name = text(array, "the array's name");
    given(values, "the array");
    auto found = std::find_if(o.arrays.begin(), o.arrays.end(),
                              [&](const BoundArray& a) { return a.name == name; });
    if (found == o.arrays.end()) found = o.arrays.insert(o.arrays.end(), {name, {}});
    found->values.resize(std::max(found->values.size(), p + 1), nullptr);
    found->values[p] = values;
  });
}
