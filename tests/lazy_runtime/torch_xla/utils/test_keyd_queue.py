import threading

from lazy_runtime.torch_xla.utils import keyd_queue


def test_items_by_key():
    queue = keyd_queue.KeydQueue(maxsize=2)
    assert queue.max_size() == 2
    assert queue.put("a", 1)
    assert queue.put("b", 2)
    assert queue.get("b") == 2
    queue.close_write()
    assert queue.get("c") is None
    assert queue.get("a") == 1


def test_room_for_what_is_waited_for():
    queue, found = keyd_queue.KeydQueue(maxsize=1), []
    queue.put("a", 1)
    reader = threading.Thread(target=lambda: found.append(queue.get("b")))
    reader.start()
    assert queue.put("b", 2)  # waits until the reader does, and not for room
    reader.join(20)
    assert found == [2]


def test_closing_releases_both_ends():
    queue, found = keyd_queue.KeydQueue(maxsize=1), []
    queue.put("a", 1)
    threads = [
        threading.Thread(target=lambda: found.append(queue.put("b", 2))),
        threading.Thread(target=lambda: found.append(queue.get("c"))),
    ]
    for each in threads:
        each.start()
    queue.close()
    for each in threads:
        each.join(20)
    assert sorted(map(str, found)) == ["False", "None"]
    assert isinstance(queue, keyd_queue.QueueBase)
