# Sidekiq on its defaults; no line is logged per job.
require "json"
require "sidekiq"

REDIS = ENV.fetch("BENCH_REDIS", "redis://127.0.0.1:6379/0")
Sidekiq.configure_client { |config| config.redis = { url: REDIS } }
Sidekiq.configure_server do |config|
  config.redis = { url: REDIS }
  config.logger.level = Logger::WARN # no line per job
end

module Marks
  LOCK = Mutex.new

  def self.add(number)
    LOCK.synchronize do
      @file ||= File.open(File.join(ENV.fetch("BENCH_MARKS", "/tmp"), "#{Process.pid}.mark"), "ab")
      @file.syswrite([number].pack("d"))
    end
  end
end

class Nothing
  include Sidekiq::Worker

  def perform(_text) = Marks.add(Time.now.to_f)
end

class Late
  include Sidekiq::Worker

  def perform(due) = Marks.add(Time.now.to_f - due)
end

class Nap
  include Sidekiq::Worker

  def perform(number, seconds)
    Marks.add(number.to_f)
    sleep(seconds)
    Marks.add(-number.to_f)
  end
end

TASKS = { "nothing" => Nothing, "late" => Late, "nap" => Nap }.freeze

def put(given)
  task = given.fetch("task", "nothing")
  count = given.fetch("count", 1).to_i
  dates = (0...count).map { |n| given["due"] && given["due"].to_f + given.fetch("spread", 0).to_f * n / count }
  first = given.fetch("first", 0).to_i
  args = (0...count).map do |n|
    case task
    when "nothing" then [(first + n).to_s.rjust(100, "0")]
    when "late" then [dates[n]]
    else [first + n + 1, given.fetch("seconds", 0).to_f]
    end
  end
  Sidekiq.redis(&:ping)
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  if given["many"]
    args.zip(dates).each_slice(1000) do |slice|
      jobs = { "class" => TASKS[task], "args" => slice.map(&:first) }
      jobs["at"] = slice.map(&:last) if given["due"]
      Sidekiq::Client.push_bulk(jobs)
    end
  else
    args.zip(dates).each { |list, date| date ? TASKS[task].perform_at(date, *list) : TASKS[task].perform_async(*list) }
  end
  Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
end

if $PROGRAM_NAME == __FILE__
  case ARGV[0]
  when "facts"
    puts JSON.generate(
      name: "Sidekiq", version: Sidekiq::VERSION, waits_in: "Redis", at_least_once: false, can_cancel: true, at_once: 10,
      settings: "defaults (polls for due jobs about every five seconds), 10 threads", many_by: "push_bulk, 1,000 per call"
    )
  when "put"
    given = ARGV.drop(1).to_h { |word| word.delete_prefix("--").split("=", 2).then { |name, value| [name, value || "1"] } }
    puts JSON.generate(seconds: put(given))
  else
    threads = ENV.fetch("BENCH_THREADS", "0").to_i
    command = ["sidekiq", "-r", __FILE__, "-c", (threads.zero? ? 10 : threads).to_s]
    (ENV.fetch("BENCH_PROCESSES", "1").to_i - 1).times { spawn(*command) }
    exec(*command)
  end
end
