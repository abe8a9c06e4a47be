from lazy_runtime.torch_xla.utils.checkpoint_tagger import CheckpointTagger


def test_a_path_goes_with_its_last_name():
    removed = []
    tagger = CheckpointTagger(removed.append)
    tagger.tag("latest", "a")
    tagger.tag("best", "a")
    tagger.tag("latest", "b")
    assert removed == []
    tagger.tag("latest", "c")
    tagger.tag("best", "c")
    assert removed == ["b", "a"]
    assert tagger.tags == {"latest": "c", "best": "c"}


def test_as_json():
    tagger = CheckpointTagger()
    tagger.tag("latest", "a")
    tagger.tag("latest", "b")
    removed = []
    again = CheckpointTagger.load_from_json(tagger.save_to_json(), removed.append)
    assert again.tags == tagger.tags == {"latest": "b"}
    again.tag("latest", "c")
    assert removed == ["b"]
