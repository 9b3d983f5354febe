// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The thread of a background save.
#include "background_write.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>

namespace tutti::detail {

struct BackgroundWrite::State {
  std::shared_ptr<Payload> payload;
  mutable std::mutex mutex;
  mutable std::condition_variable ended;
  SaveReport report{SaveState::pending, 0};
  std::exception_ptr problem;
};

BackgroundWrite::BackgroundWrite(std::shared_ptr<Payload> payload, bool threads)
    : state_(std::make_shared<State>())
{
  state_->payload = std::move(payload);
  if (threads)
    thread_ = std::thread([state = state_] { work(state); });
  else
    work(state_);
}

BackgroundWrite::~BackgroundWrite()
{
  if (thread_.joinable()) thread_.join();
}

void BackgroundWrite::work(const std::shared_ptr<State>& state)
{
  SaveReport report{SaveState::done, 0};
  std::exception_ptr problem;
  try {
    Payload& payload = *state->payload;
    payload.judge();
    payload.reach(Phase::save_payload);
    payload.write();
    payload.reach(Phase::save_sync);
    payload.sync();
  } catch (const FileError& error) {
    report = {SaveState::failed, error.number};
    problem = std::current_exception();
  } catch (...) {
    report = {SaveState::failed, 0};
    problem = std::current_exception();
  }
  const std::lock_guard lock(state->mutex);
  state->report = report;
  state->problem = problem;
  state->ended.notify_all();
}

SaveReport BackgroundWrite::report() const noexcept
{
  const std::lock_guard lock(state_->mutex);
  return state_->report;
}

bool BackgroundWrite::ended_by(std::chrono::steady_clock::time_point deadline) const
{
  std::unique_lock lock(state_->mutex);
  return state_->ended.wait_until(lock, deadline,
                                  [&] { return state_->report.state != SaveState::pending; });
}

void BackgroundWrite::join()
{
  if (thread_.joinable()) thread_.join();
  if (state_->problem) std::rethrow_exception(state_->problem);
}

void BackgroundWrite::leave(std::chrono::seconds patience)
{
  if (!thread_.joinable()) return;
  if (ended_by(std::chrono::steady_clock::now() + patience))
    thread_.join();
  else
    thread_.detach();
}

}  // namespace tutti::detail
